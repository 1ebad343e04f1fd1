package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// The plugin type of configurations for the agent.
const plugin = "host-shim"

// The CNI version of calls to the agent.
const spokenVersion = "1.1.0"

// builtInPlugins may follow this plugin in a list, because the agent does their work itself.
var builtInPlugins = map[string]struct {
	// The keys that a runtime passes to the plugin.
	capability string
	// The plugin's other keys, which the agent does not support.
	refused []string
}{
	"portmap":   {"portMappings", []string{"conditionsV4", "conditionsV6"}},
	"bandwidth": {"bandwidth", []string{"shapedSubnets", "unshapedSubnets"}},
}

// The error for a configuration of other plugins.
var errOfOthers = invalid("its plugins are not executed: there is no %s among them", plugin)

// network attaches a namespace by one interface.
type network struct {
	ifName string
	config *NetworkConfList
	// The agent's configuration. Nil: the loopback, which needs none.
	document map[string]json.RawMessage
	socket   string
	// The capabilities of the configuration. Nil: there is no configuration, and all are passed.
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
		panic(err) // It is valid.
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

// listOfOne converts the configuration of a plugin to a list with only this plugin.
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

// list parses a list of plugins.
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

// checkPlugins checks that this plugin is first in the list, and that only built-in plugins follow.
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
		return invalid("it has %s twice: use a list for each", plugin)
	}
	for number, conf := range config.Plugins {
		name := conf.Network.Type
		if _, ok := builtInPlugins[name]; !ok && name != plugin {
			return invalid("it has the plugin %s, which is not executed: remove it", name)
		}
		if number == 0 && name != plugin {
			return invalid("it has the plugin %s before %s: move it behind", name, plugin)
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

// useBuiltIn makes the agent do the work of a built-in plugin.
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
				return invalid("its plugin %s has %s, which the agent does not support: remove it", name, key)
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
	bytes, _ := json.Marshal(text) // A string can always be encoded.
	return bytes
}

func (n *network) attach(ctx context.Context, ns *Namespace) (*outcome, error) {
	answer, err := n.ask(ctx, addTimeout, "ADD", ns)
	if err != nil || n.document == nil {
		return nil, err
	}
	return readOutcome(answer)
}

func (n *network) detach(ctx context.Context, ns *Namespace) error {
	_, err := n.ask(ctx, delTimeout, "DEL", ns)
	return err
}

func (n *network) check(ctx context.Context, ns *Namespace) error {
	_, err := n.ask(ctx, checkTimeout, "CHECK", ns)
	return err
}

func (n *network) status(ctx context.Context) error {
	_, err := n.ask(ctx, statusTimeout, "STATUS", nil)
	return err
}

// ask sends the call to the agent. The loopback needs no call.
func (n *network) ask(
	ctx context.Context, timeout time.Duration, command string, ns *Namespace,
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
	return callAgent(ctx, n.socket, timeout, call)
}

// documentFor adds what the runtime passes for a namespace.
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
