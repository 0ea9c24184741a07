"""Where ranks can run: this machine; later others."""
