package segmented_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
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
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{os.Getenv("ADDR")}, DisableCache: true})
	for tries := 0; err != nil; tries++ {
		if tries == 100 {
			panic(err)
		}
		time.Sleep(5 * time.Millisecond)
		client, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{os.Getenv("ADDR")}, DisableCache: true})
	}
	hf, err := holdfast.New(client, holdfast.SessionOptions{})
	if err != nil {
		panic(err)
	}
	s, err := segmented.OpenStock(hf, os.Getenv("NAME"), segmented.StockOptions{})
	if err != nil {
		panic(err)
	}
	return s
}
