package fence_test

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/internal/redistest"
)

// One server of each sort for the package.
var (
	server    *redistest.Server
	client    rueidis.Client
	simulated rueidis.Client
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	code, err := serve(m)
	if err == nil {
		err = goleak.Find()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}

func serve(m *testing.M) (code int, err error) {
	if server, err = redistest.Start(redistest.Options{}); err != nil {
		return 1, err
	}
	defer server.Stop()
	mini, err := miniredis.Run()
	if err != nil {
		return 1, err
	}
	defer mini.Close()
	client, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
	if err != nil {
		return 1, err
	}
	defer client.Close()
	simulated, err = rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{mini.Addr()}, DisableCache: true, ForceSingleClient: true, AlwaysRESP2: true,
	})
	if err != nil {
		return 1, err
	}
	defer simulated.Close()
	return m.Run(), nil
}

var (
	runs  atomic.Int64
	named sync.Map // of *testing.T to the number of its run
)

// name is a key of this run of the test alone: with -count it runs again on the
// same server.
func name(t *testing.T) string {
	t.Helper()
	run, known := named.LoadOrStore(t, runs.Add(1))
	if !known {
		t.Cleanup(func() { named.Delete(t) })
	}
	return fmt.Sprint(t.Name(), "#", run)
}
