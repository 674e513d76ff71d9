package segmented_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/scripts"
	"github.com/holdfast-go/holdfast/segmented"
)

// connect returns a client to addr that is closed with the test.
func connect(t testing.TB, addr string) rueidis.Client {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// session returns a session on a client of its own, as another process would
// have one; it is closed with the test.
func session(t testing.TB, addr string, o ...holdfast.SessionOptions) *holdfast.Session {
	t.Helper()
	return sessionOn(t, connect(t, addr), o...)
}

func sessionOn(t testing.TB, client rueidis.Client, o ...holdfast.SessionOptions) *holdfast.Session {
	t.Helper()
	options := holdfast.SessionOptions{Timeout: 15 * time.Second} // for machines that are busy
	if len(o) > 0 {
		options = o[0]
	}
	hf, err := holdfast.New(client, options)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = hf.Close(ctx)
	})
	return hf
}

func newLock(t testing.TB, hf *holdfast.Session, name string, o segmented.Options) *segmented.Lock {
	t.Helper()
	lock, err := segmented.New(hf, name, o)
	require.NoError(t, err)
	return lock
}

var (
	runs  atomic.Int64
	named sync.Map // of testing.TB to the number of its run
)

// key is a name of this run of the test alone: with -count it runs again on the
// same server, which has its stock still.
func key(t testing.TB) string {
	t.Helper()
	run, known := named.LoadOrStore(t, runs.Add(1))
	if !known {
		t.Cleanup(func() { named.Delete(t) })
	}
	return fmt.Sprint(strings.NewReplacer("/", "-", "{", "-", "}", "-").Replace(t.Name()), "#", run)
}

// within returns a context that ends after d.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// broken is a server behind a proxy that can break the way to it.
type broken struct {
	*redistest.Server
	proxy *redistest.Proxy
}

func breakable(t testing.TB) *broken {
	t.Helper()
	srv := redistest.Run(t)
	return &broken{Server: srv, proxy: redistest.NewProxy(t, srv.Addr())}
}

// sha is how a script's command can be told on the wire: Redis is asked by the
// SHA-1 of its text.
func sha(t testing.TB, srv *redistest.Server, s *scripts.Script) string {
	t.Helper()
	return srv.Do(t, "SCRIPT", "LOAD", s.Text())
}

// goroutines is their number once it has settled.
func goroutines() int {
	n := runtime.NumGoroutine()
	for range 50 {
		time.Sleep(2 * time.Millisecond)
		if now := runtime.NumGoroutine(); now != n {
			n = now
			continue
		}
		break
	}
	runtime.GC() // while it moves dead ones from list to list they count too
	return min(n, runtime.NumGoroutine())
}

// childStock is the stock of a child process. Its way to the server may be broken
// now and then.
func childStock() *segmented.Stock {
	option := rueidis.ClientOption{InitAddress: strings.Split(os.Getenv("ADDR"), ","), DisableCache: true, DialCtxFn: through(os.Getenv("VIA"))}
	client, err := rueidis.NewClient(option)
	for tries := 0; err != nil; tries++ {
		if tries == 100 {
			panic(err)
		}
		time.Sleep(5 * time.Millisecond)
		client, err = rueidis.NewClient(option)
	}
	hf, err := holdfast.New(client, holdfast.SessionOptions{})
	if err != nil {
		panic(err)
	}
	var o segmented.StockOptions
	if text := os.Getenv("BUCKETS"); text != "" {
		if o.Buckets, err = strconv.Atoi(text); err != nil {
			panic(err)
		}
	}
	s, err := segmented.OpenStock(hf, os.Getenv("NAME"), o)
	if err != nil {
		panic(err)
	}
	return s
}

type dial = func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error)

// through has a client go to servers through proxies, "server=proxy,..."; nil if
// there are none. Nodes of a cluster tell their own addresses, so this is where a
// proxy has to come in.
func through(list string) dial {
	if list == "" {
		return nil
	}
	via := map[string]string{}
	for pair := range strings.SplitSeq(list, ",") {
		addr, proxy, _ := strings.Cut(pair, "=")
		via[addr] = proxy
	}
	return func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		if proxy := via[addr]; proxy != "" {
			addr = proxy
		}
		return d.DialContext(ctx, "tcp", addr)
	}
}

// brokenCluster is a cluster with a proxy before each node.
type brokenCluster struct {
	*redistest.Cluster
	proxies []*redistest.Proxy
	via     string
}

func breakableCluster(t testing.TB, o ...redistest.ClusterOptions) *brokenCluster {
	t.Helper()
	b := &brokenCluster{Cluster: redistest.RunCluster(t, o...)}
	var via []string
	for _, addr := range b.Addrs() {
		p := redistest.NewProxy(t, addr)
		b.proxies = append(b.proxies, p)
		via = append(via, addr+"="+p.Addr())
	}
	b.via = strings.Join(via, ",")
	return b
}

// proxied is a client that goes through the proxies.
func (b *brokenCluster) proxied(t testing.TB) rueidis.Client {
	t.Helper()
	return b.Client(t, func(o *rueidis.ClientOption) { o.DialCtxFn = through(b.via) })
}

// idsOf are ids of orders that are at home in one bucket.
func idsOf(bucket, buckets, n int) (ids []string) {
	for i := 0; len(ids) < n; i++ {
		if id := fmt.Sprint("o", bucket, "-", i); segmented.Hash(id)%uint64(buckets) == uint64(bucket) {
			ids = append(ids, id)
		}
	}
	return ids
}
