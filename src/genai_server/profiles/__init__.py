"""What ONNX Runtime's profiles say: read, analysed, shown as text, page or trace. Pure, without its library."""
