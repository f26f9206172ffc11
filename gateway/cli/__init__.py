"""The `tollgate` command: thin commands over services, storage and reports. `main` hands in the toolbox."""
