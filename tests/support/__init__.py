"""What tests share; imported as `support.<module>`."""
