package cni

import (
	"context"
	"fmt"
	"sync"
)

// CNI attaches pods' network namespaces to networks.
type CNI interface {
	// Setup attaches a namespace to all networks at once. If one of them fails, it detaches all.
	Setup(ctx context.Context, id string, path string, opts ...NamespaceOpts) (*Result, error)
	// SetupSerially does the same, one network after the other.
	SetupSerially(ctx context.Context, id string, path string, opts ...NamespaceOpts) (*Result, error)
	// Remove detaches what Setup attached. It succeeds if nothing is left, and does not need the namespace's path. A
	// failure of one network does not stop the others; the error has all failures.
	Remove(ctx context.Context, id string, path string, opts ...NamespaceOpts) error
	// Check compares what Setup attached with the kernel and the DPU.
	Check(ctx context.Context, id string, path string, opts ...NamespaceOpts) error
	// Load replaces the networks by those of the options.
	Load(opts ...Opt) error
	// Status returns an error if no pod can be attached. It takes a few seconds at most.
	Status() error
	// GetConfig returns the networks and the settings.
	GetConfig() *ConfigResult
}

type libcni struct {
	sync.RWMutex
	pluginDirs       []string
	pluginConfDir    string
	pluginMaxConfNum int
	prefix           string
	networkCount     int
	networks         []*network
	// Whether the networks come from a Load, which may have none.
	loaded bool
}

// New returns a CNI without calling the agent, which may start later. Unless options name networks, it has one: the
// DPU's default network.
func New(opts ...Opt) (CNI, error) {
	c := &libcni{
		pluginDirs:       []string{DefaultCNIDir},
		pluginConfDir:    DefaultNetDir,
		pluginMaxConfNum: DefaultMaxConfNum,
		prefix:           DefaultPrefix,
		networkCount:     1,
	}
	for _, opt := range opts {
		if err := opt(c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *libcni) Load(opts ...Opt) error {
	c.Lock()
	defer c.Unlock()
	c.networks, c.loaded = nil, true
	for _, opt := range opts {
		if err := opt(c); err != nil {
			return fmt.Errorf("cni config load failed: %v: %w", err, ErrLoad)
		}
	}
	return nil
}

func (c *libcni) Status() error {
	networks, _, err := c.current()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	for _, network := range networks {
		if err := network.status(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c *libcni) Setup(ctx context.Context, id string, path string, opts ...NamespaceOpts) (*Result, error) {
	return c.setup(ctx, id, path, opts, atOnce)
}

func (c *libcni) SetupSerially(ctx context.Context, id string, path string, opts ...NamespaceOpts) (*Result, error) {
	return c.setup(ctx, id, path, opts, inTurn)
}

func (c *libcni) Remove(ctx context.Context, id string, path string, opts ...NamespaceOpts) error {
	networks, ns, _, err := c.meant(id, path, opts)
	if err != nil {
		return err
	}
	return detachAll(ctx, networks, ns)
}

func (c *libcni) Check(ctx context.Context, id string, path string, opts ...NamespaceOpts) error {
	networks, ns, _, err := c.meant(id, path, opts)
	if err != nil {
		return err
	}
	for _, network := range networks {
		if err := network.check(ctx, ns); err != nil {
			return err
		}
	}
	return nil
}

func (c *libcni) GetConfig() *ConfigResult {
	c.RLock()
	defer c.RUnlock()
	result := &ConfigResult{
		PluginDirs:       c.pluginDirs,
		PluginConfDir:    c.pluginConfDir,
		PluginMaxConfNum: c.pluginMaxConfNum,
		Prefix:           c.prefix,
	}
	for _, network := range c.all() {
		result.Networks = append(result.Networks, &ConfNetwork{Config: network.config, IFName: network.ifName})
	}
	return result
}

// current returns the networks, if the required number is loaded, and the name of a pod's first interface.
func (c *libcni) current() ([]*network, string, error) {
	c.RLock()
	defer c.RUnlock()
	networks := c.all()
	if c.loaded && len(networks) < c.networkCount {
		return nil, "", ErrCNINotInitialized
	}
	return networks, ifNameOf(c.prefix, 0), nil
}

// meant returns the subject of a call: the networks, the namespace, and the name of its first interface.
func (c *libcni) meant(id, path string, opts []NamespaceOpts) ([]*network, *Namespace, string, error) {
	networks, first, err := c.current()
	if err != nil {
		return nil, nil, "", err
	}
	ns, err := newNamespace(id, path, opts...)
	return networks, ns, first, err
}

func (c *libcni) all() []*network {
	if c.loaded || len(c.networks) > 0 {
		return append([]*network{}, c.networks...)
	}
	return []*network{defaultNetwork(ifNameOf(c.prefix, 0))}
}

// setup attaches all networks in order, or none.
func (c *libcni) setup(
	ctx context.Context, id, path string, opts []NamespaceOpts, order func(count int, attach func(number int) error),
) (*Result, error) {
	networks, ns, first, err := c.meant(id, path, opts)
	if err != nil {
		return nil, err
	}
	outcomes, err := attachAll(ctx, networks, ns, order)
	var result *Result
	if err == nil {
		result, err = resultOf(outcomes, first)
	}
	if err != nil {
		takeBack(networks, ns)
	}
	return result, err
}

func attachAll(
	ctx context.Context, networks []*network, ns *Namespace, order func(count int, attach func(number int) error),
) ([]*outcome, error) {
	outcomes, failures := make([]*outcome, len(networks)), make([]error, len(networks))
	order(len(networks), func(number int) error {
		outcomes[number], failures[number] = networks[number].attach(ctx, ns)
		return failures[number]
	})
	for _, failure := range failures {
		if failure != nil {
			return nil, failure
		}
	}
	return outcomes, nil
}

// takeBack undoes a setup, even if the caller's time is over. It detaches all networks, because one may be attached
// whose answer was lost or unreadable. What it cannot undo is left to the caller's Remove.
func takeBack(networks []*network, ns *Namespace) {
	ctx, cancel := context.WithTimeout(context.Background(), delTimeout)
	defer cancel()
	_ = detachAll(ctx, networks, ns)
}

// detachAll detaches the last network first. A failure does not stop the others.
func detachAll(ctx context.Context, networks []*network, ns *Namespace) error {
	var failures joined
	for number := len(networks) - 1; number >= 0; number-- {
		if err := networks[number].detach(ctx, ns); err != nil {
			failures = append(failures, err)
		}
	}
	return failures.orNil()
}

func atOnce(count int, attach func(number int) error) {
	var group sync.WaitGroup
	defer group.Wait()
	for number := 0; number < count; number++ {
		group.Add(1)
		go func(number int) {
			defer group.Done()
			_ = attach(number)
		}(number)
	}
}

func inTurn(count int, attach func(number int) error) {
	for number := 0; number < count; number++ {
		if attach(number) != nil {
			return
		}
	}
}
