module github.com/dpu-offload/dpu-offload/adapters/go-cni

go 1.19

require github.com/containernetworking/cni v1.1.2
