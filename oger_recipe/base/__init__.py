"""What every room may use: files, errors, numbers, secrets, this machine."""
