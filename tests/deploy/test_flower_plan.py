"""The rows of a node, and the run configuration of the Flower app."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedsurf.deploy.flower.plan import Plan
from fedsurf.deploy.flower.rows import loaded_rows, rows_of


def test_each_site_has_its_part_of_a_table_of_all(tmp_path):
    frame = pd.DataFrame({"size": range(20), "clinic": [f"c{n % 4}" for n in range(20)]})
    frame["kind"] = frame["size"] > 9
    frame.to_csv(tmp_path / "all.csv", index=False)
    plan = Plan(agents=4, data=str(tmp_path / "all.csv"), agent_column="clinic", label="kind")
    tables = [rows_of(agent, None, plan) for agent in range(4)]
    seen = sorted(float(v) for t in tables for part in (t.x, t.test_x) for v in part.flat)
    assert seen == list(range(20))
    with pytest.raises(ValueError, match="got 4 different agents"):
        rows_of(0, None, replace(plan, agents=5))
    with pytest.raises(ValueError, match="got no table"):
        rows_of(0, None, replace(plan, data=""))


def test_rows_that_a_user_loads_are_checked():
    plan = Plan(agents=1, test_share=0.5)
    table = loaded_rows(lambda _: (pd.DataFrame({"a": [1, 2]}), ["x", "x"]), None, plan)
    assert (table.features, len(table.y), len(table.test_y)) == (("a",), 1, 1)
    for x, y in [([[np.nan]], [1]), ([1.0], [1]), ([[1.0]], [1, 2]), ([], [])]:
        with pytest.raises(ValueError, match="load: got"):
            loaded_rows(lambda _, x=x, y=y: (np.array(x), np.array(y)), None, plan)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "extra"}, "method: got 'extra'"),
        ({"method": "u-dgd"}, "optimizer: got none"),
        ({"agents": 0}, "agents: got 0"),
        ({"reporting": 9}, "reporting: got 9"),
        ({"settings": "step_size = 1"}, "softmax-head has none"),
        ({"calling": "never"}, "calling: got 'never'"),
        ({"rounds": "many"}, "run config: rounds: got 'many'"),
        ({"test-share": 1.0}, "test-share: got 1.0"),
    ],
)
def test_a_run_configuration_is_checked(wrong, message):
    with pytest.raises(ValueError, match=message):
        Plan.read({"agents": 5} | wrong)


def test_settings_are_read_as_toml():
    plan = Plan.read(
        {"agents": 5, "method": "fedavg", "settings": "step_size = 0.1, batch_size = 4"}
    )
    assert plan.method_settings == {"step_size": 0.1, "batch_size": 4}
    with pytest.raises(ValueError, match="settings: got 'step_size'"):
        _ = replace(plan, settings="step_size").method_settings
