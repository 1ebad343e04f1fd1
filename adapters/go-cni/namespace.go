package cni

import (
	"fmt"
	"sort"
	"strings"
)

// NamespaceOpts is an option for one namespace.
type NamespaceOpts func(s *Namespace) error

// Namespace is a pod's network namespace with its options.
type Namespace struct {
	id             string
	path           string
	capabilityArgs map[string]interface{}
	args           map[string]string
}

func newNamespace(id, path string, opts ...NamespaceOpts) (*Namespace, error) {
	ns := &Namespace{
		id: id, path: path, capabilityArgs: map[string]interface{}{}, args: map[string]string{},
	}
	for _, opt := range opts {
		if err := opt(ns); err != nil {
			return nil, err
		}
	}
	return ns, nil
}

// arguments returns CNI_ARGS.
func (ns *Namespace) arguments() string {
	var pairs []string
	for key, value := range ns.args {
		pairs = append(pairs, key+"="+value)
	}
	sort.Strings(pairs)
	return strings.Join(pairs, ";")
}

// WithCapabilityPortMap maps ports of the DPU to the pod.
func WithCapabilityPortMap(portMapping []PortMapping) NamespaceOpts {
	return WithCapability("portMappings", portMapping)
}

// WithCapabilityIPRanges requests addresses of ranges. The agent refuses it, because the DPU allocates addresses.
func WithCapabilityIPRanges(ipRanges []IPRanges) NamespaceOpts {
	return WithCapability("ipRanges", ipRanges)
}

// WithCapabilityBandWidth limits what the pod sends and receives.
func WithCapabilityBandWidth(bandWidth BandWidth) NamespaceOpts {
	return WithCapability("bandwidth", bandWidth)
}

// WithCapabilityDNS sets the result's resolvers instead of the network's.
func WithCapabilityDNS(dns DNS) NamespaceOpts {
	return WithCapability("dns", dns)
}

// WithCapabilityCgroupPath passes the pod's control group.
func WithCapabilityCgroupPath(cgroupPath string) NamespaceOpts {
	return WithCapability("cgroupPath", cgroupPath)
}

// WithCapability passes a capability of the CNI conventions. The agent refuses unsupported ones by name.
func WithCapability(name string, capability interface{}) NamespaceOpts {
	return func(ns *Namespace) error {
		ns.capabilityArgs[name] = capability
		return nil
	}
}

// WithLabels passes arguments: K8S_POD_NAMESPACE, K8S_POD_NAME, K8S_POD_UID and the like.
func WithLabels(labels map[string]string) NamespaceOpts {
	return func(ns *Namespace) error {
		for key, value := range labels {
			if err := ns.addArgument(key, value); err != nil {
				return err
			}
		}
		return nil
	}
}

// WithArgs passes one argument.
func WithArgs(k, v string) NamespaceOpts {
	return func(ns *Namespace) error {
		return ns.addArgument(k, v)
	}
}

func (ns *Namespace) addArgument(key, value string) error {
	if strings.ContainsAny(key, "=;") || strings.Contains(value, ";") {
		return fmt.Errorf("the argument %q=%q cannot be passed: = and ; are separators", key, value)
	}
	ns.args[key] = value
	return nil
}
