"""What every back end of channels, stores and media must do; tests bind them to each."""
