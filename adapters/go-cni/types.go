package cni

import (
	"net"

	"github.com/containernetworking/cni/pkg/types"
)

// What go-cni's users find under these names. Only the prefix and the number of configurations mean something here.
const (
	CNIPluginName        = "cni"
	DefaultNetDir        = "/etc/cni/net.d"
	DefaultCNIDir        = "/opt/cni/bin"
	DefaultMaxConfNum    = 1
	VendorCNIDirTemplate = "%s/opt/%s/bin"
	DefaultPrefix        = "eth"
)

// IPConfig is an address of an interface.
type IPConfig struct {
	IP      net.IP
	Gateway net.IP
}

// PortMapping has a port of the DPU lead to one of the pod's.
type PortMapping struct {
	HostPort      int32
	ContainerPort int32
	Protocol      string
	HostIP        string
}

// IPRanges are what addresses are wanted of.
type IPRanges struct {
	Subnet     string
	RangeStart string
	RangeEnd   string
	Gateway    string
}

// BandWidth has limits in bits per second and bits. 0: none.
type BandWidth struct {
	IngressRate  uint64
	IngressBurst uint64
	EgressRate   uint64
	EgressBurst  uint64
}

// DNS has settings of a resolver.
type DNS struct {
	Servers  []string
	Searches []string
	Options  []string
}

// ConfigResult is what GetConfig tells.
type ConfigResult struct {
	PluginDirs       []string
	PluginConfDir    string
	PluginMaxConfNum int
	Prefix           string
	Networks         []*ConfNetwork
}

// ConfNetwork is a network, and the interface that leads to it.
type ConfNetwork struct {
	Config *NetworkConfList
	IFName string
}

// NetworkConfList is the configuration of a network.
type NetworkConfList struct {
	Name       string
	CNIVersion string
	Plugins    []*NetworkConf
	Source     string
}

// NetworkConf is that of a plugin.
type NetworkConf struct {
	Network *types.NetConf
	Source  string
}

// CNIOpt is the older name of Opt.
type CNIOpt = Opt

// CNIResult is the older name of Result.
type CNIResult = Result
