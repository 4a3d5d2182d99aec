"""The constrained problem (SURF) as cooper sees it: a loss, the layers' slacks and their multipliers."""

import cooper
import torch
from torch import Tensor


class DescendingProblem(cooper.ConstrainedMinimizationProblem):
    """A loss under descending constraints.

    Parameters
    ----------
    layers : int
        The number of constraints.
    dtype : torch.dtype
        The multipliers' floating type.
    constrained : bool
        Whether constraints count.
    penalty : float
        The coefficient of the augmented Lagrangian; 0 for the plain one.
    """

    def __init__(
        self, layers: int, dtype: torch.dtype, *, constrained: bool, penalty: float
    ) -> None:
        super().__init__()
        self.constrained = constrained
        formulation: type[cooper.formulations.Formulation] = cooper.formulations.Lagrangian
        coefficient = None
        if penalty:
            formulation = cooper.formulations.AugmentedLagrangian
            coefficient = cooper.penalty_coefficients.DensePenaltyCoefficient(
                torch.tensor(penalty, dtype=dtype)
            )
        self.multiplier = cooper.multipliers.DenseMultiplier(num_constraints=layers, dtype=dtype)
        self.descending = cooper.Constraint(
            constraint_type=cooper.ConstraintType.INEQUALITY,
            formulation_type=formulation,
            multiplier=self.multiplier,
            penalty_coefficient=coefficient,
        )

    def compute_cmp_state(self, loss: Tensor, slacks: Tensor) -> cooper.CMPState:
        """Return what cooper minimises and maximises."""
        constraint = cooper.ConstraintState(
            violation=slacks,
            contributes_to_primal_update=self.constrained,
            contributes_to_dual_update=self.constrained,
        )
        return cooper.CMPState(loss=loss, observed_constraints={self.descending: constraint})
