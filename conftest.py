pytest_plugins = ("fp8parity.plugin",)
