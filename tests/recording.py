"""An algorithm that records all states of another one."""


class Recording:
    """Runs an algorithm and keeps every state, from the first on, in `states`."""

    def __init__(self, inner):
        self.inner, self.model, self.name = inner, inner.model, inner.name
        self.states = []

    def init(self, *arguments):
        self.states.append(self.inner.init(*arguments))
        return self.states[-1]

    def step(self, *arguments):
        self.states.append(self.inner.step(*arguments))
        return self.states[-1]
