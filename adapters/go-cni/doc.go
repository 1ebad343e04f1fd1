// Package cni gives pods their network by the agent of dpu-offload, with the interface of
// github.com/containerd/go-cni. A runtime that is built with it in that package's place needs neither CNI plugins nor
// CNI configurations: whatever the package is called for, it asks of the agent, by its Unix socket.
//
// Nothing of a pod is remembered here. What there is to know is with the agent and the DPU, so that Remove and Check
// work after a restart of the program as before.
package cni
