//go:build containerd2

package cni

import original "github.com/containerd/go-cni"

// The names that only the go-cni of containerd 2 has.
func init() {
	beside = append(beside, pair{WithCapabilityCgroupPath, original.WithCapabilityCgroupPath})
}
