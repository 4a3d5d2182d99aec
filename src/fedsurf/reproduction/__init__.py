"""The paper's figures again: each at three sizes, with the claims judged one by one."""
