"""Tests that the readers of some teams get those teams' rows alone, from every report and page."""
