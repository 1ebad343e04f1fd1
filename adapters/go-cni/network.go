package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// The plugin whose configurations are meant for the agent.
const plugin = "host-shim"

// The version that the agent is spoken to in.
const spokenVersion = "1.1.0"

// builtInPlugins may be behind ours in a list: what they are for, the agent does itself.
var builtInPlugins = map[string]struct {
	// With what a runtime asks for it.
	capability string
	// Keys of theirs that the agent has nothing for.
	refused []string
}{
	"portmap":   {"portMappings", []string{"conditionsV4", "conditionsV6"}},
	"bandwidth": {"bandwidth", []string{"shapedSubnets", "unshapedSubnets"}},
}

// A configuration that is none of ours.
var errOfOthers = invalid("its plugins are not executed: there is no %s among them", plugin)

// network is one that a namespace is attached to by an interface.
type network struct {
	ifName string
	config *NetworkConfList
	// What the agent is told of it. Nil: it is the loopback, of which it need not be told.
	document map[string]json.RawMessage
	socket   string
	// The capabilities that the configuration has. Nil: there is no configuration that could lack one.
	capabilities map[string]bool
	// Limits of a plugin bandwidth in the list, unless the runtime passes others. Nil: none.
	limits *BandWidth
}

func defaultNetwork(ifName string) *network {
	network, err := list([]byte(`{
"cniVersion": "` + spokenVersion + `",
"name": "dpu-offload",
"plugins": [{"type": "` + plugin + `", "network": ""}]
}`))
	if err != nil {
		panic(err) // That is one.
	}
	network.ifName, network.capabilities = ifName, nil
	return network
}

func loopback() *network {
	config := &NetworkConfList{
		Name:       "cni-loopback",
		CNIVersion: spokenVersion,
		Plugins:    []*NetworkConf{{Network: &types.NetConf{Type: "loopback"}, Source: `{"type": "loopback"}`}},
		Source:     `{"cniVersion": "` + spokenVersion + `", "name": "cni-loopback", "plugins": [{"type": "loopback"}]}`,
	}
	return &network{ifName: "lo", config: config}
}

// listOfOne reads the configuration of a plugin, which is the list that has it alone.
func listOfOne(bytes []byte) (*network, error) {
	var conf types.NetConf
	if err := json.Unmarshal(bytes, &conf); err != nil {
		return nil, invalid("it can't be decoded: %v", err)
	}
	if conf.Type == "" {
		return nil, invalid("it has no type: is it a list?")
	}
	whole, err := json.Marshal(map[string]interface{}{
		"cniVersion": conf.CNIVersion,
		"name":       conf.Name,
		"plugins":    []json.RawMessage{bytes},
	})
	if err != nil {
		return nil, invalid("it can't be encoded: %v", err)
	}
	return list(whole)
}

// list reads a list of plugins.
func list(bytes []byte) (*network, error) {
	var read struct {
		Name       string
		CNIVersion string
		Plugins    []json.RawMessage
	}
	if err := json.Unmarshal(bytes, &read); err != nil {
		return nil, invalid("it can't be decoded: %v", err)
	}
	config := &NetworkConfList{Name: read.Name, CNIVersion: read.CNIVersion, Source: string(bytes)}
	for _, source := range read.Plugins {
		conf := &NetworkConf{Network: &types.NetConf{}, Source: string(source)}
		if err := json.Unmarshal(source, conf.Network); err != nil {
			return nil, invalid("a plugin can't be decoded: %v", err)
		}
		config.Plugins = append(config.Plugins, conf)
	}
	if err := checkPlugins(config); err != nil {
		return nil, err
	}
	if config.Name == "" {
		return nil, invalid("it has no name")
	}
	return networkOf(config)
}

// checkPlugins says whether the list has ours first, and behind it only what the agent does itself.
func checkPlugins(config *NetworkConfList) error {
	ours := 0
	for _, conf := range config.Plugins {
		if conf.Network.Type == plugin {
			ours++
		}
	}
	if ours == 0 {
		return errOfOthers
	}
	if ours > 1 {
		return invalid("it has %s twice: each wants a list of its own", plugin)
	}
	for number, conf := range config.Plugins {
		name := conf.Network.Type
		if _, ok := builtInPlugins[name]; !ok && name != plugin {
			return invalid("it has the plugin %s besides %s, and that is not executed: leave it out", name, plugin)
		}
		if number == 0 && name != plugin {
			return invalid("it has the plugin %s before %s: put it behind", name, plugin)
		}
	}
	return nil
}

func networkOf(config *NetworkConfList) (*network, error) {
	only := config.Plugins[0]
	document := map[string]json.RawMessage{}
	var settings struct{ AgentSocket string }
	for _, target := range []interface{}{&document, &settings} {
		if err := json.Unmarshal([]byte(only.Source), target); err != nil {
			return nil, invalid("its plugin can't be decoded: %v", err)
		}
	}
	document["name"] = quoted(config.Name)
	document["cniVersion"] = quoted(spokenVersion)
	network := &network{
		config: config, document: document, socket: socketOr(settings.AgentSocket), capabilities: map[string]bool{},
	}
	for name, declared := range only.Network.Capabilities {
		network.capabilities[name] = declared
	}
	for _, conf := range config.Plugins[1:] {
		if err := network.useBuiltIn(conf); err != nil {
			return nil, err
		}
	}
	return network, nil
}

// useBuiltIn has the agent do what a plugin behind ours is for.
func (n *network) useBuiltIn(conf *NetworkConf) error {
	name := conf.Network.Type
	its := builtInPlugins[name]
	var keys map[string]json.RawMessage
	if err := json.Unmarshal([]byte(conf.Source), &keys); err != nil {
		return invalid("its plugin %s can't be decoded: %v", name, err)
	}
	for key := range keys {
		for _, refused := range its.refused {
			if strings.EqualFold(key, refused) {
				return invalid("its plugin %s has %s, which the agent has nothing for: leave it out", name, key)
			}
		}
	}
	if conf.Network.Capabilities[its.capability] {
		n.capabilities[its.capability] = true
	}
	if name != "bandwidth" {
		return nil
	}
	limits := BandWidth{}
	if err := json.Unmarshal([]byte(conf.Source), &limits); err != nil {
		return invalid("the limits of its plugin %s can't be decoded: %v", name, err)
	}
	if limits != (BandWidth{}) {
		n.limits = &limits
	}
	return nil
}

func quoted(text string) json.RawMessage {
	bytes, _ := json.Marshal(text) // A string always can be.
	return bytes
}

func (n *network) attach(ctx context.Context, ns *Namespace) (*outcome, error) {
	answer, err := n.ask(ctx, addPatience, "ADD", ns)
	if err != nil || n.document == nil {
		return nil, err
	}
	return readOutcome(answer)
}

func (n *network) detach(ctx context.Context, ns *Namespace) error {
	_, err := n.ask(ctx, delPatience, "DEL", ns)
	return err
}

func (n *network) check(ctx context.Context, ns *Namespace) error {
	_, err := n.ask(ctx, checkPatience, "CHECK", ns)
	return err
}

func (n *network) status(ctx context.Context) error {
	_, err := n.ask(ctx, statusPatience, "STATUS", nil)
	return err
}

// ask has the agent do it. The loopback is its own matter.
func (n *network) ask(
	ctx context.Context, patience time.Duration, command string, ns *Namespace,
) (json.RawMessage, error) {
	if n.document == nil {
		return nil, nil
	}
	call := request{Verb: "cni", Command: command, Configuration: n.document}
	if ns != nil {
		call.ContainerID, call.Netns, call.IfName, call.Args = ns.id, ns.path, n.ifName, ns.arguments()
		document, err := n.documentFor(ns)
		if err != nil {
			return nil, err
		}
		call.Configuration = document
	}
	return callAgent(ctx, n.socket, patience, call)
}

// documentFor has in it what the runtime passes for a namespace.
func (n *network) documentFor(ns *Namespace) (map[string]json.RawMessage, error) {
	passed := map[string]interface{}{}
	for name, value := range ns.capabilityArgs {
		if n.capabilities == nil || n.capabilities[name] {
			passed[name] = value
		}
	}
	if _, ok := passed["bandwidth"]; !ok && n.limits != nil {
		passed["bandwidth"] = n.limits
	}
	bytes, err := json.Marshal(passed)
	if err != nil {
		return nil, fmt.Errorf("a capability can't be encoded: %w", err)
	}
	document := map[string]json.RawMessage{"runtimeConfig": bytes}
	for key, value := range n.document {
		document[key] = value
	}
	return document, nil
}
