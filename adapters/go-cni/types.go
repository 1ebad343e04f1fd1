package cni

import (
	"net"

	"github.com/containernetworking/cni/pkg/types"
)

// Names that go-cni's users expect. Only the prefix and the number of configurations have an effect here.
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

// PortMapping maps a port of the DPU to one of the pod.
type PortMapping struct {
	HostPort      int32
	ContainerPort int32
	Protocol      string
	HostIP        string
}

// IPRanges are ranges of requested addresses.
type IPRanges struct {
	Subnet     string
	RangeStart string
	RangeEnd   string
	Gateway    string
}

// BandWidth has limits in bits per second and bits. 0: no limit.
type BandWidth struct {
	IngressRate  uint64
	IngressBurst uint64
	EgressRate   uint64
	EgressBurst  uint64
}

// DNS has resolver settings.
type DNS struct {
	Servers  []string
	Searches []string
	Options  []string
}

// ConfigResult is the result of GetConfig.
type ConfigResult struct {
	PluginDirs       []string
	PluginConfDir    string
	PluginMaxConfNum int
	Prefix           string
	Networks         []*ConfNetwork
}

// ConfNetwork is a network with the interface for it.
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

// NetworkConf is the configuration of a plugin.
type NetworkConf struct {
	Network *types.NetConf
	Source  string
}

// CNIOpt is the older name of Opt.
type CNIOpt = Opt

// CNIResult is the older name of Result.
type CNIResult = Result
