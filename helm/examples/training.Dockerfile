# A training image: whatever you train with, and one line more.
#
#   docker build -f training.Dockerfile -t registry.example.com/train:1 .
FROM pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime
RUN pip install --no-cache-dir rank-exporter
COPY train.py /workspace/train.py
