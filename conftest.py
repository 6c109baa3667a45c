pytest_plugins = ("fp8parity.gate.plugin",)
