//go:build containerd2

package cni

import original "github.com/containerd/go-cni"

// What the go-cni of containerd 2 has, and earlier ones have not.
func init() {
	beside = append(beside, pair{WithCapabilityCgroupPath, original.WithCapabilityCgroupPath})
}
