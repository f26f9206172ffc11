"""What one worker knows of each deployment: health, speed, load."""
