// The example does for one pod what a runtime does. It stores nothing: each call is a process of its own.
//
//	example setup|setup-serially|remove|check CONTAINER-ID NETNS <request.json
//	example status|config
//
// The pod's options are a JSON object on standard input; the result is printed as JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	cni "github.com/dpu-offload/dpu-offload/adapters/go-cni"
)

// timeout is the time limit of a pod's start.
const timeout = 60 * time.Second

// podRequest has a pod's options. A missing key is an option that is not passed.
type podRequest struct {
	// Configurations of networks, instead of the DPU's default one.
	Networks     []json.RawMessage
	Labels       map[string]string
	Annotations  map[string]string
	PortMappings []cni.PortMapping
	BandWidth    *cni.BandWidth
	DNS          *cni.DNS
	IPRanges     []cni.IPRanges
	CgroupPath   string
}

func main() {
	answer, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) (interface{}, error) {
	arguments = append(arguments, "", "", "")
	command, id, path := arguments[0], arguments[1], arguments[2]
	var asked podRequest
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		return nil, fmt.Errorf("cannot read the request: %w", err)
	}
	network, err := cni.New()
	if err != nil {
		return nil, err
	}
	if err := network.Load(asked.networks()...); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	switch command {
	case "setup":
		return network.Setup(ctx, id, path, asked.options()...)
	case "setup-serially":
		return network.SetupSerially(ctx, id, path, asked.options()...)
	case "remove":
		return nil, network.Remove(ctx, id, path, asked.options()...)
	case "check":
		return nil, network.Check(ctx, id, path, asked.options()...)
	case "status":
		return nil, network.Status()
	case "config":
		return network.GetConfig(), nil
	}
	return nil, fmt.Errorf("unknown command %q", command)
}

// networks are loaded like in containerd.
func (w *podRequest) networks() []cni.Opt {
	opts := []cni.Opt{cni.WithLoNetwork}
	if len(w.Networks) == 0 {
		opts = append(opts, cni.WithDefaultConf)
	}
	for number, configuration := range w.Networks {
		opts = append(opts, cni.WithConfIndex(configuration, number))
	}
	return opts
}

func (w *podRequest) options() []cni.NamespaceOpts {
	opts := []cni.NamespaceOpts{cni.WithLabels(w.Labels)}
	if w.Annotations != nil {
		opts = append(opts, cni.WithCapability("io.kubernetes.cri.pod-annotations", w.Annotations))
	}
	if w.PortMappings != nil {
		opts = append(opts, cni.WithCapabilityPortMap(w.PortMappings))
	}
	if w.BandWidth != nil {
		opts = append(opts, cni.WithCapabilityBandWidth(*w.BandWidth))
	}
	if w.DNS != nil {
		opts = append(opts, cni.WithCapabilityDNS(*w.DNS))
	}
	if w.IPRanges != nil {
		opts = append(opts, cni.WithCapabilityIPRanges(w.IPRanges))
	}
	if w.CgroupPath != "" {
		opts = append(opts, cni.WithCapabilityCgroupPath(w.CgroupPath))
	}
	return opts
}
