package cni

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

// fake implements the interface without an agent, for tests of runtimes.
type fake struct{ status error }

func (f *fake) Setup(context.Context, string, string, ...NamespaceOpts) (*Result, error) {
	return &Result{Interfaces: map[string]*Config{"eth0": {}}}, f.status
}

func (f *fake) SetupSerially(ctx context.Context, id, path string, opts ...NamespaceOpts) (*Result, error) {
	return f.Setup(ctx, id, path, opts...)
}
func (f *fake) Remove(context.Context, string, string, ...NamespaceOpts) error { return f.status }
func (f *fake) Check(context.Context, string, string, ...NamespaceOpts) error  { return f.status }
func (f *fake) Load(...Opt) error                                              { return nil }
func (f *fake) Status() error                                                  { return f.status }
func (f *fake) GetConfig() *ConfigResult                                       { return nil }

var _ CNI = &fake{}

const result = `{"result":{"cniVersion":"1.1.0",
"interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","mtu":1500,"sandbox":"/run/netns/a","pciID":"0000:03:00.2"},
  {"name":"net1","mac":"02:00:00:00:00:02","sandbox":"/run/netns/a"}],
"ips":[{"address":"10.1.0.5/16","gateway":"10.1.0.1","interface":0},{"address":"fd00:10:1::5/64","interface":0},
  {"address":"10.2.0.5/24","interface":1}],
"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"}],"dns":{"nameservers":["10.0.0.53"],"search":["a.b"]}}}`

func TestAResultSurvivesJSON(t *testing.T) {
	startAgent(t, always(result))
	got, err := newCNI(t).Setup(context.Background(), "c1", "/run/netns/a")
	if err != nil {
		t.Fatal(err)
	}
	eth0 := got.Interfaces["eth0"]
	if len(eth0.IPConfigs) != 2 || eth0.IPConfigs[0].IP.String() != "10.1.0.5" ||
		eth0.IPConfigs[0].Gateway.String() != "10.1.0.1" || eth0.PciID != "0000:03:00.2" || eth0.Sandbox != "/run/netns/a" {
		t.Errorf("%+v", eth0)
	}
	if len(got.Interfaces["net1"].IPConfigs) != 1 || len(got.Routes) != 1 || got.DNS[0].Nameservers[0] != "10.0.0.53" {
		t.Errorf("%+v", got)
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	read := &Result{}
	if err := json.Unmarshal(text, read); err != nil {
		t.Fatal(err)
	}
	again, _ := json.Marshal(read)
	if string(again) != string(text) || len(read.Raw()) != 1 || read.Raw()[0].Interfaces[0].Mac != eth0.Mac {
		t.Errorf("%s was %s", again, text)
	}
}

func TestAResultWithAGapIsRefused(t *testing.T) {
	for _, list := range []string{"interfaces", "ips", "routes"} {
		startAgent(t, always(`{"result":{"cniVersion":"1.0.0","`+list+`":[null]}}`))
		if _, err := newCNI(t).Setup(context.Background(), "c1", "/run/netns/a"); !IsInvalidResult(err) {
			t.Errorf("%s: %v", list, err)
		}
	}
}

func TestResultWithUnknownInterfaceIsRefused(t *testing.T) {
	for _, number := range []string{"2", "-1"} {
		startAgent(t, always(strings.Replace(result, `"interface":1`, `"interface":`+number, 1)))
		if _, err := newCNI(t).Setup(context.Background(), "c1", "/run/netns/a"); !IsInvalidResult(err) {
			t.Error(err)
		}
	}
}

func conf(name string) []byte {
	return []byte(`{"cniVersion":"1.0.0","name":"` + name + `","type":"host-shim","network":"` + name + `"}`)
}

func threeNetworks(t *testing.T) CNI {
	return newCNI(t, WithConfIndex(conf("a"), 0), WithConfIndex(conf("b"), 1), WithConfIndex(conf("c"), 2))
}

// answerSecond is an agent that gives this answer to the ADD of eth1 and succeeds otherwise.
func answerSecond(answer string) func(request) string {
	return func(call request) string {
		switch {
		case call.Command != "ADD":
			return done
		case call.IfName == "eth1":
			return answer
		}
		return strings.ReplaceAll(result, "eth0", call.IfName)
	}
}

const refused = `{"error":{"code":103,"msg":"no address is left"}}`

// The interfaces of the DELs, in order.
func detached(calls []request) string {
	var names []string
	for _, call := range calls {
		if call.Command == "DEL" {
			names = append(names, call.IfName)
		}
	}
	return strings.Join(names, " ")
}

// A refused network, one with an unreadable answer, and one whose answer cannot be combined with the others'.
func TestFailedSetupDetachesAllNetworks(t *testing.T) {
	for answer, why := range map[string]string{
		refused:         "no address is left",
		`{"result":[]}`: "can't be decoded",
		strings.Replace(result, `"interface":1`, `"interface":7`, 1): "there is no interface 7",
	} {
		agent := startAgent(t, answerSecond(answer))
		for name, setup := range map[string]func(context.Context, string, string, ...NamespaceOpts) (*Result, error){
			"at once": threeNetworks(t).Setup, "in turn": threeNetworks(t).SetupSerially,
		} {
			before := len(agent.calls())
			_, err := setup(context.Background(), "c1", "/run/netns/a")
			if err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%s: %v", name, err)
			}
			if undone := detached(agent.calls()[before:]); undone != "eth2 eth1 eth0" {
				t.Errorf("%s, %s: %q is taken back", name, why, undone)
			}
		}
	}
}

func TestUndoHasItsOwnTimeLimit(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	agent := startAgent(t, func(call request) string {
		if call.Command == "ADD" && call.IfName == "eth1" {
			cancel()
		}
		return answerSecond(refused)(call)
	})
	_, err := threeNetworks(t).SetupSerially(ctx, "c1", "/run/netns/a")
	if undone := detached(agent.calls()); err == nil || undone != "eth2 eth1 eth0" {
		t.Errorf("%v, and %q is taken back", err, undone)
	}
}

func TestRemoveContinuesAndReportsAllFailures(t *testing.T) {
	agent := startAgent(t, func(call request) string {
		if call.IfName == "eth1" {
			return done
		}
		return `{"error":{"code":11,"msg":"` + call.IfName + ` is busy"}}`
	})
	err := threeNetworks(t).Remove(context.Background(), "c1", "")
	var refusal *types.Error
	if !errors.As(err, &refusal) || refusal.Code != 11 || errors.Is(err, context.Canceled) ||
		!strings.Contains(err.Error(), "eth0 is busy") || !strings.Contains(err.Error(), "eth2 is busy") {
		t.Errorf("%v", err)
	}
	if undone := detached(agent.calls()); undone != "eth2 eth1 eth0" {
		t.Errorf("%q is taken back", undone)
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if err := threeNetworks(t).Remove(over, "c1", ""); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// A Load while a namespace is attached affects only the next one.
func TestASetupIsOfOneLoad(t *testing.T) {
	var network CNI
	startAgent(t, func(request) string {
		if err := network.Load(WithInterfacePrefix("net"), WithDefaultConf); err != nil {
			t.Error(err)
		}
		return strings.ReplaceAll(result, `,"interface":0`, "")
	})
	network = newCNI(t, WithPluginConfDir(t.TempDir()))
	got, err := network.Setup(context.Background(), "c1", "/run/netns/a")
	if err != nil {
		t.Fatal(err)
	}
	if got.Interfaces["net0"] != nil || len(got.Interfaces["eth0"].IPConfigs) != 2 {
		t.Errorf("%v", got.Interfaces)
	}
}

func TestSeveralNetworksAreOneResult(t *testing.T) {
	agent := startAgent(t, func(call request) string {
		return strings.ReplaceAll(strings.ReplaceAll(result, "eth0", call.IfName), "net1", "x"+call.IfName)
	})
	got, err := threeNetworks(t).SetupSerially(context.Background(), "c1", "/run/netns/a")
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, call := range agent.calls() {
		order = append(order, call.IfName+string(call.Configuration["network"]))
	}
	if strings.Join(order, " ") != `eth0"a" eth1"b" eth2"c"` || len(got.Interfaces) != 6 || len(got.Raw()) != 3 {
		t.Errorf("%v, %v", order, got.Interfaces)
	}
}

func TestDefaultNetworkWithoutFiles(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for _, folder := range []string{t.TempDir(), missing} {
		network := newCNI(t, WithMinNetworkCount(2), WithPluginConfDir(folder))
		if err := network.Load(WithLoNetwork, WithDefaultConf); err != nil {
			t.Fatal(err)
		}
		assertNetworks(t, network, "lo cni-loopback, eth0 dpu-offload")
	}
	assertNetworks(t, newCNI(t, WithMinNetworkCount(2)), "eth0 dpu-offload")
	assertNetworks(t, newCNI(t, WithInterfacePrefix("net")), "net0 dpu-offload")
}

func assertNetworks(t *testing.T, network CNI, expected string) {
	t.Helper()
	config := network.GetConfig()
	var names []string
	for _, one := range config.Networks {
		names = append(names, one.IFName+" "+one.Config.Name)
	}
	if strings.Join(names, ", ") != expected {
		t.Errorf("%v, not %s", names, expected)
	}
	text, err := json.Marshal(config)
	read := &ConfigResult{}
	if err != nil || json.Unmarshal(text, read) != nil || !reflect.DeepEqual(config, read) {
		t.Errorf("%s: %v", text, err)
	}
}

func TestOtherPluginsFilesAreIgnored(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	foreign := write("05-podman.conflist", `{"cniVersion":"0.4.0","name":"podman","plugins":[{"type":"bridge"}]}`)
	write("20-b.conf", string(conf("b")))
	list := write("10-a.conflist", `{"cniVersion":"1.0.0","name":"a","plugins":[`+string(conf("ignored"))+`]}`)
	write("readme", "nothing")
	load := func(max int, opt Opt) CNI {
		network := newCNI(t, WithPluginConfDir(folder), WithPluginMaxConfNum(max))
		if err := network.Load(opt); err != nil {
			t.Fatal(err)
		}
		return network
	}
	assertNetworks(t, load(1, WithDefaultConf), "eth0 a")
	assertNetworks(t, load(2, WithDefaultConf), "eth0 a, eth1 b")
	assertNetworks(t, load(1, WithAllConf), "eth0 a, eth1 b")
	assertNetworks(t, load(1, WithConfListFile(list)), "eth0 a")
	err := newCNI(t).Load(WithConfListFile(foreign))
	if !errors.Is(err, ErrLoad) || !strings.Contains(err.Error(), foreign) {
		t.Error(err)
	}
	write("01-broken.conf", "{")
	network := newCNI(t, WithPluginConfDir(folder))
	if err := network.Load(WithDefaultConf); !errors.Is(err, ErrLoad) {
		t.Error(err)
	}
	if err := network.Status(); !IsCNINotInitialized(err) {
		t.Errorf("what failed to load is in force: %v", err)
	}
}

func TestOtherPluginsAreRefusedByName(t *testing.T) {
	for text, why := range map[string]string{
		`{"name":"n","plugins":[{"type":"bridge"}]}`:                         "there is no host-shim among them",
		`{"name":"n","plugins":[{"type":"host-shim"},{"type":"tuning"}]}`:    "it has the plugin tuning, which is not executed",
		`{"name":"n","plugins":[{"type":"portmap"},{"type":"host-shim"}]}`:   "it has the plugin portmap before host-shim",
		behind(`{"type":"portmap","conditionsV4":["-s","10.0.0.0/8"]}`):      "its plugin portmap has conditionsV4",
		behind(`{"type":"bandwidth","unshapedSubnets":["10.0.0.0/8"]}`):      "its plugin bandwidth has unshapedSubnets",
		behind(`{"type":"bandwidth","ingressRate":"fast"}`):                  "the limits of its plugin bandwidth",
		`{"name":"n","plugins":[{"type":"host-shim"},{"type":"host-shim"}]}`: "it has host-shim twice",
		`{"plugins":[{"type":"host-shim"}]}`:                                 "it has no name",
		`{"name":"n"}`:                                                       "there is no host-shim among them",
		`[]`:                                                                 "it can't be decoded",
	} {
		_, err := New(WithConfListBytes([]byte(text)))
		if !IsInvalidConfig(err) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := New(WithConf([]byte(`{"name":"n","plugins":[]}`))); !IsInvalidConfig(err) {
		t.Error(err)
	}
	if _, err := New(WithConfFile(filepath.Join(t.TempDir(), "missing"))); !IsReadFailure(err) {
		t.Error(err)
	}
}

// behind is a list with these plugins after host-shim.
func behind(plugins string) string {
	return `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"host-shim"},` + plugins + `]}`
}

func TestAgentDoesPortmapAndBandwidth(t *testing.T) {
	agent := startAgent(t, always(done))
	folder := t.TempDir()
	text := behind(`{"type":"portmap","snat":true,"capabilities":{"portMappings":true}},
		{"type":"bandwidth","ingressRate":8000000,"ingressBurst":800000,"capabilities":{"bandwidth":true}}`)
	if err := os.WriteFile(filepath.Join(folder, "10-n.conflist"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	network := newCNI(t, WithPluginConfDir(folder))
	if err := network.Load(WithLoNetwork, WithDefaultConf); err != nil {
		t.Fatal(err)
	}
	assertNetworks(t, network, "lo cni-loopback, eth0 n")
	limits := func(ingress, burst, egress string) string {
		return `"bandwidth":{"IngressRate":` + ingress + `,"IngressBurst":` + burst + `,"EgressRate":` + egress + `,"EgressBurst":0}`
	}
	for _, one := range []struct {
		opt    NamespaceOpts
		passed string
	}{
		{WithCapabilityPortMap([]PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}}), `{` +
			limits("8000000", "800000", "0") +
			`,"portMappings":[{"HostPort":8080,"ContainerPort":80,"Protocol":"tcp","HostIP":""}]}`},
		{WithCapabilityBandWidth(BandWidth{EgressRate: 7}), `{` + limits("0", "0", "7") + `}`},
		{WithCapabilityDNS(DNS{}), `{` + limits("8000000", "800000", "0") + `}`},
	} {
		before := len(agent.calls())
		if err := network.Remove(context.Background(), "c1", "", one.opt); err != nil {
			t.Fatal(err)
		}
		passed := string(agent.calls()[before].Configuration["runtimeConfig"])
		if passed != one.passed {
			t.Errorf("%s, not %s", passed, one.passed)
		}
	}
}

func TestConfigurationHasSocketAndCapabilities(t *testing.T) {
	agent := startAgent(t, always(done))
	t.Setenv(SocketVariable, "/nowhere")
	text := `{"name":"n","type":"host-shim","agentSocket":"` + agent.socket + `","capabilities":{"dns":true}}`
	err := newCNI(t, WithConf([]byte(text))).Remove(context.Background(), "c1", "",
		WithCapabilityDNS(DNS{Servers: []string{"10.0.0.53"}}), WithCapabilityCgroupPath("/a"))
	if err != nil {
		t.Fatal(err)
	}
	passed := string(agent.calls()[0].Configuration["runtimeConfig"])
	if passed != `{"dns":{"Servers":["10.0.0.53"],"Searches":null,"Options":null}}` {
		t.Error(passed)
	}
}
