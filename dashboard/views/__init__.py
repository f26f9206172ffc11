"""One file per page. A page offers `page()` for the menu and `show()`."""
