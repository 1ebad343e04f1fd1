package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

const limit = 20 * time.Second

// fakeAgent answers each call with a test's function, and records the calls.
type fakeAgent struct {
	socket string
	mutex  sync.Mutex
	asked  []request
}

// startAgent makes calls from here on go to an agent with these answers. Without an answer it closes the connection.
func startAgent(t *testing.T, answer func(request) string) *fakeAgent {
	agent := absentAgent(t)
	t.Setenv(SocketVariable, agent.socket)
	agent.listen(t, answer)
	return agent
}

func absentAgent(t *testing.T) *fakeAgent {
	return &fakeAgent{socket: filepath.Join(t.TempDir(), "agent.sock")}
}

// network is a network of this agent, for slow tests that run in parallel.
func (a *fakeAgent) network() Opt {
	return WithConf([]byte(`{"name":"n","type":"host-shim","agentSocket":"` + a.socket + `"}`))
}

func (a *fakeAgent) listen(t *testing.T, answer func(request) string) {
	listener, err := net.Listen("unix", a.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go a.serveAll(listener, answer)
}

func (a *fakeAgent) serveAll(listener net.Listener, answer func(request) string) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go a.serve(conn, answer)
	}
}

func (a *fakeAgent) serve(conn net.Conn, answer func(request) string) {
	defer conn.Close()
	document, err := io.ReadAll(conn)
	var call request
	if err != nil || json.Unmarshal(document, &call) != nil {
		return
	}
	a.mutex.Lock()
	a.asked = append(a.asked, call)
	a.mutex.Unlock()
	_, _ = io.WriteString(conn, answer(call))
}

func (a *fakeAgent) calls() []request {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return append([]request{}, a.asked...)
}

func always(answer string) func(request) string {
	return func(request) string { return answer }
}

const done = ` {"result":null}` + "\n"

func newCNI(t *testing.T, opts ...Opt) CNI {
	network, err := New(opts...)
	if err != nil {
		t.Fatal(err)
	}
	return network
}

func TestNewCallsNoAgent(t *testing.T) {
	t.Setenv(SocketVariable, filepath.Join(t.TempDir(), "nobody"))
	newCNI(t, WithLoNetwork, WithPluginConfDir(t.TempDir()), WithDefaultConf)
}

func TestCallHasRuntimesForm(t *testing.T) {
	agent := startAgent(t, always(done))
	err := newCNI(t).Remove(context.Background(), "c1", "/run/netns/a",
		WithLabels(map[string]string{"K8S_POD_NAME": "web", "IgnoreUnknown": "1"}), WithArgs("K8S_POD_UID", "u"),
		WithCapabilityPortMap([]PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}}),
		WithCapabilityBandWidth(BandWidth{IngressRate: 8}), WithCapabilityDNS(DNS{Servers: []string{"10.0.0.53"}}),
		WithCapabilityCgroupPath("/pods/a"), WithCapability("io.kubernetes.cri.pod-annotations", map[string]string(nil)))
	if err != nil {
		t.Fatal(err)
	}
	call := agent.calls()[0]
	if call.Verb != "cni" || call.Command != "DEL" || call.ContainerID != "c1" || call.Netns != "/run/netns/a" ||
		call.IfName != "eth0" || call.Args != "IgnoreUnknown=1;K8S_POD_NAME=web;K8S_POD_UID=u" {
		t.Errorf("%+v", call)
	}
	if call.DeadlineMS <= 0 || call.DeadlineMS > delTimeout.Milliseconds() {
		t.Errorf("its deadline is %d ms", call.DeadlineMS)
	}
	told, _ := json.Marshal(call.Configuration)
	for _, part := range []string{
		`"cniVersion":"1.1.0"`, `"name":"dpu-offload"`, `"type":"host-shim"`, `"network":""`,
		`"HostPort":8080`, `"IngressRate":8`, `"Servers":["10.0.0.53"]`, `"cgroupPath":"/pods/a"`,
		`"io.kubernetes.cri.pod-annotations":null`,
	} {
		if !strings.Contains(string(told), part) {
			t.Errorf("%s is not in %s", part, told)
		}
	}
}

func TestRefusalHasItsCode(t *testing.T) {
	startAgent(t, always(`{"error":{"cniVersion":"1.1.0","code":104,"msg":"no VF is left","details":"VFS_EXHAUSTED: stop pods"}}`))
	_, err := newCNI(t).Setup(context.Background(), "c1", "/run/netns/a")
	var refusal *types.Error
	if !errors.As(err, &refusal) || refusal.Code != 104 || !strings.Contains(err.Error(), "no VF is left") {
		t.Errorf("%#v", err)
	}
}

func TestArgumentWithSeparatorIsRefused(t *testing.T) {
	agent := startAgent(t, always(done))
	err := newCNI(t).Remove(context.Background(), "c1", "", WithArgs("K8S_POD_NAME", "a;IP=10.1.0.9"))
	if err == nil || len(agent.calls()) != 0 {
		t.Errorf("%v, %v", err, agent.calls())
	}
}

func TestReplacedAgentIsCalledAgain(t *testing.T) {
	calls := 0
	agent := startAgent(t, func(request) string {
		if calls++; calls < 3 {
			return " "
		}
		return done
	})
	if err := newCNI(t).Status(); err != nil || len(agent.calls()) != 3 {
		t.Errorf("%v after %d calls", err, len(agent.calls()))
	}
}

func TestLateAgentIsWaitedFor(t *testing.T) {
	agent := absentAgent(t)
	network := newCNI(t, agent.network())
	failure := make(chan error)
	go func() { failure <- network.Status() }()
	time.AfterFunc(4*look, func() { agent.listen(t, always(done)) })
	if err := <-failure; err != nil {
		t.Error(err)
	}
}

func TestStatusDoesNotWaitForMissingAgent(t *testing.T) {
	t.Parallel()
	agent := absentAgent(t)
	began := time.Now()
	err := newCNI(t, agent.network()).Status()
	if err == nil || !strings.Contains(err.Error(), agent.socket) || time.Since(began) > statusTimeout+time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

func TestStatusDoesNotWaitForSuspendedAgent(t *testing.T) {
	t.Parallel()
	suspended := make(chan struct{})
	t.Cleanup(func() { close(suspended) })
	agent := absentAgent(t)
	agent.listen(t, func(request) string { <-suspended; return "" })
	began := time.Now()
	err := newCNI(t, agent.network()).Status()
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > statusTimeout+time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

func TestCancelledCallClosesConnection(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	socket := filepath.Join(t.TempDir(), "agent.sock")
	t.Setenv(SocketVariable, socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	failure := make(chan error)
	go func() {
		_, err := newCNI(t).Setup(ctx, "c1", "/run/netns/a")
		failure <- err
	}()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.ReadAll(conn); err != nil {
		t.Fatal(err)
	}
	go (&fakeAgent{}).serveAll(listener, always(done))
	cancel()
	if err := <-failure; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	for err = nil; err == nil; {
		_, err = conn.Write([]byte(" "))
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Error("the connection is open")
	}
}

func TestMalformedOrHugeAnswerIsAnError(t *testing.T) {
	t.Parallel()
	endless := `{"result":"` + string(bytes.Repeat([]byte("x"), 2*documentLimit))
	for _, answer := range []string{`{"result":[}`, `[]`, endless} {
		agent := absentAgent(t)
		agent.listen(t, always(answer))
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		if err := newCNI(t, agent.network()).Check(ctx, "c1", "/run/netns/a"); err == nil {
			t.Errorf("%.20s is taken for an answer", answer)
		}
		cancel()
	}
}
