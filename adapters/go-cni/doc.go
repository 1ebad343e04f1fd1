// Package cni attaches pods through the agent of dpu-offload, with the interface of github.com/containerd/go-cni. A
// runtime that is built with it needs neither CNI plugins nor CNI configurations. The package sends all calls to the
// agent over its Unix socket.
//
// The package stores nothing about pods. The agent and the DPU have all state, so that Remove and Check also work after
// a restart of the program.
package cni
