"""The device service: joins a federation, trains, personalizes and exports."""
