package redistest

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

const (
	slotCount = 16384
	// A node that is silent for so long is suspected, and then replaced.
	nodeTimeout = time.Second
	// How long MIGRATE may take for what it moves at once.
	migrateTimeout = 5 * time.Second
)

// ClusterOptions says what cluster to start.
type ClusterOptions struct {
	// Binary is as in Options.
	Binary string
	// Primaries is the number of primaries. Zero means three. With less than
	// three there is no majority to replace one that fails.
	Primaries int
	// Replicas is the number of replicas of each primary.
	Replicas int
	// NodeTimeout is the cluster-node-timeout. Zero means one second.
	NodeTimeout time.Duration
	// Args are more configuration for each of the nodes, as in Options.
	Args []string
	// Clock is the clock of all the nodes, or nil for that of the system.
	Clock *Clock
}

// Cluster is a cluster of several server processes which nobody else uses. The
// slots are spread evenly over the primaries, in order.
//
// Replicas do not migrate on their own, and a primary without slots stays one.
type Cluster struct {
	servers []*Server
}

// RunCluster starts a cluster for the time of a test and returns when it is
// whole, with replicas in step. Without options it has three primaries with
// one replica each. It takes about three seconds, for a primary that starts
// accepts no writes for two.
func RunCluster(tb TB, o ...ClusterOptions) *Cluster {
	tb.Helper()
	opts := ClusterOptions{Replicas: 1}
	if len(o) > 0 {
		opts = o[0]
	}
	opts.Primaries = cmp.Or(opts.Primaries, 3)
	opts.NodeTimeout = cmp.Or(opts.NodeTimeout, nodeTimeout)
	servers, err := startAll(opts.Primaries*(1+opts.Replicas), Options{
		Binary: opts.Binary,
		Args: append([]string{
			"--cluster-node-timeout", strconv.FormatInt(opts.NodeTimeout.Milliseconds(), 10),
			"--cluster-replica-validity-factor", "0", "--cluster-allow-replica-migration", "no",
		}, opts.Args...),
		Cluster: true,
		Clock:   opts.Clock,
		member:  true,
	})
	c := &Cluster{servers: servers}
	tb.Cleanup(c.Stop)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	c.form(tb, opts.Primaries)
	return c
}

// startAll starts n servers at once. It returns those which did start.
func startAll(n int, o Options) ([]*Server, error) {
	servers, errs := make([]*Server, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { servers[i], errs[i] = Start(o) })
	}
	wg.Wait()
	return slices.DeleteFunc(servers, func(s *Server) bool { return s == nil }), errors.Join(errs...)
}

// form makes a cluster of the nodes, the first of which become primaries.
func (c *Cluster) form(tb TB, primaries int) {
	tb.Helper()
	for i, s := range c.servers {
		// Or the nodes would have to find out that they all have the same one.
		s.Do(tb, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		for _, other := range c.servers[:i] {
			s.Do(tb, "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(other.port))
		}
	}
	ids := make([]string, primaries)
	for i, s := range c.servers[:primaries] {
		first, next := slotCount*i/primaries, slotCount*(i+1)/primaries
		s.Do(tb, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(first), strconv.Itoa(next-1))
		ids[i] = s.Do(tb, "CLUSTER", "MYID")
	}
	for i, s := range c.servers[primaries:] {
		await(tb, "the replicas know their primaries", func() error {
			_, err := s.TryDo("CLUSTER", "REPLICATE", ids[i%primaries])
			return err
		})
	}
	c.WaitOK(tb)
}

// Servers returns the nodes, in the order in which they were started: first
// those that were primaries, then their replicas.
func (c *Cluster) Servers() []*Server { return slices.Clone(c.servers) }

// Addrs returns the addresses of the nodes.
func (c *Cluster) Addrs() []string { return addrs(c.servers) }

func addrs(servers []*Server) []string {
	list := make([]string, len(servers))
	for i, s := range servers {
		list[i] = s.Addr()
	}
	return list
}

// Stop kills the nodes and removes their directories.
func (c *Cluster) Stop() { stopAll(c.servers) }

func stopAll(servers []*Server) {
	for _, s := range servers {
		s.Stop()
	}
}

// Client returns a cluster client, closed at the end of the test. Its
// client-side cache is off.
func (c *Cluster) Client(tb TB, mod ...func(*rueidis.ClientOption)) rueidis.Client {
	tb.Helper()
	all := func(o *rueidis.ClientOption) { o.InitAddress = c.Addrs() }
	return c.servers[0].Client(tb, append([]func(*rueidis.ClientOption){all}, mod...)...)
}

// Slot returns the slot of the key.
func (c *Cluster) Slot(key string) uint16 {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	var crc uint16 // CRC16/XMODEM
	for _, b := range []byte(key) {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc >> 15
			crc = crc<<1 ^ carry*0x1021
		}
	}
	return crc % slotCount
}

// Primary returns the node that serves the key.
func (c *Cluster) Primary(key string) *Server { return c.Owner(c.Slot(key)) }

// Owner returns the node that serves the slot, or nil while there is none that
// runs and is not paused. Every node is asked for itself; of several which
// believe that they serve the slot the one with the newest configuration does.
func (c *Cluster) Owner(slot uint16) *Server {
	if v := owner(c.views(), slot); v != nil {
		return v.server
	}
	return nil
}

func owner(views []*view, slot uint16) *view {
	var newest *view
	for _, v := range views {
		if v.err == nil && v.self.primary && v.self.owns(slot) && (newest == nil || v.self.epoch > newest.self.epoch) {
			newest = v
		}
	}
	return newest
}

func (c *Cluster) owner(tb TB, slot uint16) *Server {
	tb.Helper()
	s := c.Owner(slot)
	if s == nil {
		tb.Fatalf("redistest: nobody serves slot %d", slot)
	}
	return s
}

// Replicas returns the replicas of the node that serves the slot, without those
// that do not run or are paused.
func (c *Cluster) Replicas(slot uint16) []*Server {
	views := c.views()
	primary := owner(views, slot)
	var replicas []*Server
	for _, v := range views {
		if v.err == nil && primary != nil && v.self.source == primary.self.id {
			replicas = append(replicas, v.server)
		}
	}
	return replicas
}

// Do runs one command on the node that serves the key, as Server.Do does. It
// follows no redirections.
func (c *Cluster) Do(tb TB, key string, args ...string) string {
	tb.Helper()
	return c.owner(tb, c.Slot(key)).Do(tb, args...)
}

// Keys returns the keys that match the pattern on all the primaries, sorted.
func (c *Cluster) Keys(tb TB, pattern string) []string {
	tb.Helper()
	var keys []string
	for _, s := range c.primaries() {
		keys = append(keys, s.Keys(tb, pattern)...)
	}
	slices.Sort(keys)
	return keys
}

// Calls reads the command statistics of all the primaries together. Replicas
// are left out, where each write is counted again. So statistics from before
// and after a failover do not compare.
func (c *Cluster) Calls(tb TB) Calls {
	tb.Helper()
	sum := Calls{}
	for _, s := range c.primaries() {
		for name, n := range s.Calls(tb) {
			sum[name] += n
		}
	}
	return sum
}

func (c *Cluster) primaries() []*Server {
	var primaries []*Server
	for _, v := range c.views() {
		if v.err == nil && v.self.primary {
			primaries = append(primaries, v.server)
		}
	}
	return primaries
}

// User creates a user on all the nodes, as Server.User does.
func (c *Cluster) User(tb TB, name string, rules ...string) func(*rueidis.ClientOption) {
	tb.Helper()
	var login func(*rueidis.ClientOption)
	for _, s := range c.servers {
		login = s.User(tb, name, rules...)
	}
	return login
}

// Failover makes the replica the primary and its primary the replica, without
// losing anything, and waits until all the nodes know.
func (c *Cluster) Failover(tb TB, replica *Server) {
	tb.Helper()
	replica.Do(tb, "CLUSTER", "FAILOVER")
	asked := time.Now()
	await(tb, "the replica is promoted", func() error {
		v := lookAround(replica)
		if v.err != nil || v.self.primary {
			return v.err
		}
		if time.Since(asked) > 6*time.Second { // after five the replica gives up
			asked = time.Now()
			_, err := replica.TryDo("CLUSTER", "FAILOVER")
			return err
		}
		return errors.New("it is a replica")
	})
	c.WaitOK(tb)
}

// KillPrimary kills the node that serves the slot, waits until a replica has
// taken over and all the others know, and returns the new primary. Writes that
// the replica had not got are lost.
func (c *Cluster) KillPrimary(tb TB, slot uint16) *Server {
	tb.Helper()
	if len(c.Replicas(slot)) == 0 {
		tb.Fatalf("redistest: no replica can take over slot %d", slot)
	}
	c.owner(tb, slot).Kill()
	c.WaitOK(tb)
	return c.owner(tb, slot)
}

// Restart starts a node again, killing it first if it still runs, and waits
// until the cluster is whole. The node comes back as a replica if another one
// has taken over, or else as the primary that it was, without its keys unless
// it has an append-only file.
func (c *Cluster) Restart(tb TB, s *Server) {
	tb.Helper()
	if err := s.Restart(); err != nil {
		tb.Fatalf("redistest: restart a node: %v", err)
	}
	c.WaitOK(tb)
}

// WaitOK waits until the cluster is whole: the nodes that run and are not paused
// serve all the slots, agree on who does and who replicates whom, and take each
// other for alive, and the replicas are in step.
func (c *Cluster) WaitOK(tb TB) {
	tb.Helper()
	await(tb, "the cluster is whole", func() error { return whole(c.views()) })
}

// view is how one node sees the cluster.
type view struct {
	server *Server
	err    error
	self   node
	nodes  map[string]node
}

// node is one line of CLUSTER NODES.
type node struct {
	id      string
	flags   []string
	primary bool
	source  string // the ID of the primary of a replica
	epoch   int64
	link    string
	slots   string
}

// views asks all the nodes that answer.
func (c *Cluster) views() []*view {
	views := make([]*view, len(c.servers))
	var wg sync.WaitGroup
	for i, s := range c.servers {
		if s.answers() {
			wg.Go(func() { views[i] = lookAround(s) })
		}
	}
	wg.Wait()
	return slices.DeleteFunc(views, func(v *view) bool { return v == nil })
}

func lookAround(s *Server) *view {
	v := &view{server: s, nodes: map[string]node{}}
	text, err := s.TryDo("CLUSTER", "NODES")
	if err != nil {
		v.err = err
		return v
	}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 8 {
			continue
		}
		n := node{id: f[0], flags: strings.Split(f[2], ","), source: f[3], link: f[7]}
		n.primary = slices.Contains(n.flags, "master")
		n.epoch, _ = strconv.ParseInt(f[6], 10, 64)
		n.slots = strings.Join(slices.DeleteFunc(f[8:], func(slots string) bool {
			return strings.HasPrefix(slots, "[") // on the move
		}), " ")
		v.nodes[n.id] = n
		if slices.Contains(n.flags, "myself") {
			v.self = n
		}
	}
	if v.self.id == "" {
		v.err = fmt.Errorf("CLUSTER NODES: %q", text)
	}
	return v
}

// ranges returns the first and last slot of each range of slots.
func (n node) ranges() iter.Seq2[int, int] {
	return func(yield func(first, last int) bool) {
		for r := range strings.FieldsSeq(n.slots) {
			from, to, ok := strings.Cut(r, "-")
			if !ok {
				to = from
			}
			first, _ := strconv.Atoi(from)
			last, _ := strconv.Atoi(to)
			if !yield(first, last) {
				return
			}
		}
	}
}

func (n node) owns(slot uint16) bool {
	for first, last := range n.ranges() {
		if first <= int(slot) && int(slot) <= last {
			return true
		}
	}
	return false
}

func (n node) count() int {
	sum := 0
	for first, last := range n.ranges() {
		sum += last - first + 1
	}
	return sum
}

// whole returns what is missing for the cluster to be whole.
func whole(views []*view) error {
	slots := 0
	byID := map[string]*view{}
	for _, v := range views {
		if v.err != nil {
			return fmt.Errorf("%s: %w", v.server.Addr(), v.err)
		}
		if byID[v.self.id] = v; v.self.primary {
			slots += v.self.count()
		}
	}
	if slots != slotCount {
		return fmt.Errorf("%d slots are served", slots)
	}
	for _, v := range views {
		for _, w := range views {
			if err := v.agrees(w); err != nil {
				return fmt.Errorf("%s, as %s sees it: %w", w.server.Addr(), v.server.Addr(), err)
			}
		}
	}
	for _, v := range views {
		info, err := v.server.TryDo("CLUSTER", "INFO")
		if err != nil {
			return err
		}
		if !strings.Contains(info, "cluster_state:ok\r") {
			return fmt.Errorf("%s: its state is not ok", v.server.Addr())
		}
		if v.self.primary {
			continue
		}
		primary := byID[v.self.source]
		if primary == nil {
			return fmt.Errorf("%s: its primary is gone", v.server.Addr())
		}
		r, err := primary.server.tryReplication()
		if err != nil {
			return err
		}
		if err = v.server.inStep(primary.server, r.offset()); err != nil {
			return fmt.Errorf("%s: %w", v.server.Addr(), err)
		}
	}
	return nil
}

// agrees returns how the node sees another one otherwise than that sees itself.
func (v *view) agrees(w *view) error {
	n, ok := v.nodes[w.self.id]
	if !ok {
		return errors.New("unknown")
	}
	for _, flag := range n.flags {
		if flag != "myself" && flag != "master" && flag != "slave" && flag != "nofailover" {
			return fmt.Errorf("%s", flag)
		}
	}
	switch {
	case n.primary != w.self.primary || n.source != w.self.source:
		return fmt.Errorf("%v of %s and not %v of %s", n.flags, n.source, w.self.flags, w.self.source)
	case n.slots != w.self.slots:
		return fmt.Errorf("serves %s and not %s", n.slots, w.self.slots)
	case n.link != "connected":
		return fmt.Errorf("%s", n.link)
	}
	return nil
}
