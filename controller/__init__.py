"""What should happen next: the pure decision, and the loop that makes it durable."""
