"""What a GPU is: device specs, the virtual GPU, traces, counters and the timing model."""
