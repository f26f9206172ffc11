"""Each deployment's health, speed and load, as one worker knows them."""
