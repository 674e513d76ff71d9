package interop_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/reentrant"
	"github.com/holdfast-go/holdfast/rwlock"
)

// A place is where locks lie, and how both sides are set up for it.
type place struct {
	name    string
	servers []*redistest.Server
	cluster *redistest.Cluster // nil for one server
	java    []string           // settings of a Redisson client
	family  holdfast.Family
}

// places are the server, and the cluster with either family of channels.
func places() []place {
	c := cluster()
	address := "address=" + strings.Join(c.Addrs(), ",")
	return []place{
		single(server),
		{
			name: "cluster-sharded", servers: c.Servers(), cluster: c,
			java: []string{address, "cluster=true"}, family: holdfast.FamilyAuto,
		},
		{
			name: "cluster-plain", servers: c.Servers(), cluster: c,
			java: []string{address, "cluster=true", "sharded=OFF"}, family: holdfast.FamilyPublish,
		},
	}
}

func single(s *redistest.Server) place {
	return place{name: "single", servers: []*redistest.Server{s}, java: []string{"address=" + s.Addr()}}
}

// do runs a command where the key is.
func (p place) do(t testing.TB, key string, args ...string) string {
	t.Helper()
	if p.cluster != nil {
		return p.cluster.Do(t, key, args...)
	}
	return p.servers[0].Do(t, args...)
}

// ttl is the rest of the time for which a key is kept.
func (p place) ttl(t testing.TB, key string) time.Duration {
	t.Helper()
	ms, err := strconv.Atoi(p.do(t, key, "PTTL", key))
	require.NoError(t, err)
	return time.Duration(ms) * time.Millisecond
}

// keys are those that match, wherever they are.
func (p place) keys(t testing.TB, pattern string) []string {
	t.Helper()
	if p.cluster != nil {
		return p.cluster.Keys(t, pattern)
	}
	return p.servers[0].Keys(t, pattern)
}

// listeners is the number of subscriptions of a channel, of either family.
func (p place) listeners(t testing.TB, channel string) int {
	t.Helper()
	sum := 0
	for _, s := range p.servers {
		for _, command := range []string{"NUMSUB", "SHARDNUMSUB"} {
			reply := s.Do(t, "PUBSUB", command, channel)
			n, err := strconv.Atoi(reply[strings.LastIndexByte(reply, ' ')+1:])
			require.NoError(t, err)
			sum += n
		}
	}
	return sum
}

// listening waits until n clients listen for releases of a lock. What a waiter does
// between its subscription and its sleep nothing shows.
func (p place) listening(t testing.TB, k kind, name string, n int) {
	t.Helper()
	redistest.Eventually(t, patience, fmt.Sprintf("%d listen to %s", n, k.channel(name)), func() bool {
		return p.listeners(t, k.channel(name)) == n
	})
	time.Sleep(5 * time.Millisecond)
}

// open is a Redisson client here.
func (p place) open(t testing.TB, j *jvm, settings ...string) *client {
	t.Helper()
	return j.open(t, append(append([]string{}, p.java...), settings...)...)
}

// session is a session on a client of its own: to all others a process of its own.
func (p place) session(t testing.TB, o ...holdfast.SessionOptions) *holdfast.Session {
	t.Helper()
	options := holdfast.SessionOptions{}
	if len(o) > 0 {
		options = o[0]
	}
	if options.Family == holdfast.FamilyAuto {
		options.Family = p.family
	}
	options.Observer.Acquired = func(context.Context, holdfast.Acquired) { goCalls.Add(1) }
	options.Observer.Released = func(context.Context, holdfast.Released) { goCalls.Add(1) }
	options.Logger = slog.New(slog.DiscardHandler)
	redis := p.client(t)
	hf, err := holdfast.New(redis, options)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = hf.Close(ctx)
	})
	return hf
}

func (p place) client(t testing.TB) rueidis.Client {
	t.Helper()
	if p.cluster != nil {
		return p.cluster.Client(t)
	}
	return p.servers[0].Client(t)
}

// A kind is a lock kind on both sides.
type kind struct {
	name string
	java string // what the Java program calls it
	lock func(*holdfast.Session, string, holdfast.Options) golock
	// owner is the field of a hold whose lease has that Owner.
	owner func(string) string
	// prefix is that of the channel.
	prefix string
}

// golock is what the Go side of a kind can do.
type golock interface {
	holdfast.Locker
	Info(ctx context.Context) (holdfast.Info, error)
	ForceUnlock(ctx context.Context) (bool, error)
}

func (k kind) channel(name string) string { return prefixed(k.prefix, name) }

// prefixed is the name of a key or channel that goes with a lock.
func prefixed(prefix, name string) string {
	if strings.Contains(name, "{") {
		return prefix + ":" + name
	}
	return prefix + ":{" + name + "}"
}

var (
	plain  = kind{"lock", "lock", newReentrant, same, "redisson_lock__channel"}
	fenced = kind{"fenced", "fenced", newFenced, same, "redisson_lock__channel"}
	writer = kind{"write", "write", newWriter, writing, "redisson_rwlock"}
	reader = kind{"read", "read", newReader, same, "redisson_rwlock"}
)

// kinds are those that exclude everybody.
var kinds = []kind{plain, fenced, writer}

func same(owner string) string    { return owner }
func writing(owner string) string { return owner + ":write" }

func newReentrant(hf *holdfast.Session, name string, o holdfast.Options) golock {
	l, err := reentrant.New(hf, name, o)
	check(err)
	return l
}

func newFenced(hf *holdfast.Session, name string, o holdfast.Options) golock {
	o.Fencing, o.TokenRetention = true, -1
	return newReentrant(hf, name, o)
}

func newReadWrite(hf *holdfast.Session, name string, o holdfast.Options) *rwlock.Lock {
	l, err := rwlock.New(hf, name, rwlock.Options{Options: o})
	check(err)
	return l
}

// writerLease bounds what it costs when Java misses a writer's release, as it may on a
// machine that is busy: see TestRedisson_missesAWritersRelease.
const writerLease = 5 * time.Second

func newWriter(hf *holdfast.Session, name string, o holdfast.Options) golock {
	if o.Lease == 0 {
		o.Lease = writerLease
	}
	return newReadWrite(hf, name, o).Writer()
}

func newReader(hf *holdfast.Session, name string, o holdfast.Options) golock {
	return newReadWrite(hf, name, o).Reader()
}

// everywhere runs a test with each version of Redisson, in each place.
func everywhere(t *testing.T, test func(t *testing.T, j *jvm, p place)) {
	t.Helper()
	for _, j := range jvms {
		for _, p := range places() {
			t.Run("redisson="+j.version+"/"+p.name, func(t *testing.T) { test(t, j, p) })
		}
	}
}

// eachKind runs a test as everywhere does, for each kind that excludes everybody.
func eachKind(t *testing.T, test func(t *testing.T, j *jvm, p place, k kind)) {
	t.Helper()
	everywhere(t, func(t *testing.T, j *jvm, p place) {
		for _, k := range kinds {
			t.Run(k.name, func(t *testing.T) { test(t, j, p, k) })
		}
	})
}

// together runs a test that mostly waits as everywhere does, all at the same time.
func together(t *testing.T, test func(t *testing.T, j *jvm, p place)) {
	t.Helper()
	everywhere(t, func(t *testing.T, j *jvm, p place) {
		t.Parallel()
		test(t, j, p)
	})
}

// key is a name of this test's own.
func key(t testing.TB) string {
	return strings.NewReplacer("{", "-", "}", "-", "/", ":").Replace(t.Name())
}

// soon is a context that ends when the test's patience does.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// take takes a lock and fails the test if it cannot.
func take(t testing.TB, l holdfast.Locker) (context.Context, *holdfast.Lease) {
	t.Helper()
	ctx, lease, err := l.Lock(soon(t))
	require.NoError(t, err)
	return ctx, lease
}

// refused checks that a lock is taken by somebody else.
func refused(t testing.TB, l holdfast.Locker) {
	t.Helper()
	_, _, err := l.TryLock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
}

// a grant is what became of a Lock on a goroutine.
type grant struct {
	ctx   context.Context
	lease *holdfast.Lease
	err   error
	at    time.Time
}

// waitFor takes a lock on a goroutine.
func waitFor(t testing.TB, l holdfast.Locker) <-chan grant {
	t.Helper()
	c, ctx := make(chan grant, 1), soon(t)
	go func() {
		held, lease, err := l.Lock(ctx)
		c <- grant{held, lease, err, time.Now()}
	}()
	return c
}

// granted waits for the lock.
func granted(t testing.TB, c <-chan grant) grant {
	t.Helper()
	g := <-c
	require.NoError(t, g.err)
	return g
}

// waits checks that the lock is not there yet.
func waits(t testing.TB, c <-chan grant, why string) {
	t.Helper()
	select {
	case g := <-c:
		require.Fail(t, why, "the error of Lock: %v", g.err)
	default:
	}
}

// ended waits for the end of a hold's context.
func ended(t testing.TB, ctx context.Context) {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(patience):
		require.Fail(t, "the holder was not told")
	}
}
