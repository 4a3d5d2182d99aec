"""An algorithm that keeps all its states."""


class Recording:
    def __init__(self, inner):
        self.inner, self.model, self.name = inner, inner.model, inner.name
        self.states = []

    def init(self, *arguments):
        self.states.append(self.inner.init(*arguments))
        return self.states[-1]

    def step(self, *arguments):
        self.states.append(self.inner.step(*arguments))
        return self.states[-1]
