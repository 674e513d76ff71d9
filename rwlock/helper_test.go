package rwlock_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/rwlock"
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
	options := holdfast.SessionOptions{}
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

func newLock(t testing.TB, hf *holdfast.Session, name string, o ...holdfast.Options) *rwlock.Lock {
	t.Helper()
	options := rwlock.Options{}
	if len(o) > 0 {
		options.Options = o[0]
	}
	lock, err := rwlock.New(hf, name, options)
	require.NoError(t, err)
	return lock
}

// key is a lock name of this test's own.
func key(t testing.TB) string {
	return strings.NewReplacer("/", "-", "{", "-", "}", "-").Replace(t.Name())
}

// must fails the test on an error and passes the rest on.
func must(t testing.TB, ctx context.Context, err error) context.Context {
	t.Helper()
	require.NoError(t, err)
	return ctx
}

// lock takes l and fails the test if that fails.
func lock(t testing.TB, l holdfast.Locker) (context.Context, *holdfast.Lease) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	held, lease, err := l.Lock(ctx)
	return must(t, held, err), lease
}

// within returns a context that ends after d.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// waiting waits until n calls of hf wait.
func waiting(t testing.TB, hf *holdfast.Session, n int) {
	t.Helper()
	redistest.Eventually(t, 30*time.Second, "callers wait", func() bool { return hf.Stats().Waiting == n })
}

// subscribed waits until the server has n subscriptions.
func subscribed(t testing.TB, s *redistest.Server, n int) {
	t.Helper()
	redistest.Eventually(t, 30*time.Second, "channels subscribed", func() bool { return len(s.Channels(t)) == n })
}

// listening waits until the test's channel has n subscribers: a caller subscribes
// once it has been told that the lock is taken.
func listening(t testing.TB, s *redistest.Server, n int) {
	t.Helper()
	channel := "redisson_rwlock:{" + key(t) + "}"
	redistest.Eventually(t, 30*time.Second, "callers listen", func() bool {
		return strings.HasSuffix(s.Do(t, "PUBSUB", "NUMSUB", channel), strconv.Itoa(n)) ||
			strings.HasSuffix(s.Do(t, "PUBSUB", "SHARDNUMSUB", channel), strconv.Itoa(n))
	})
}

// hear passes on what a dedicated connection is told, once it has subscribed.
func hear(c rueidis.DedicatedClient, got chan<- string, ready chan<- struct{}) {
	c.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) { got <- m.Message },
		OnSubscription: func(rueidis.PubSubSubscription) {
			select {
			case ready <- struct{}{}:
			default:
			}
		},
	})
}
