"""What makes data to train on: sources, reading, hygiene, mining, the generated world."""
