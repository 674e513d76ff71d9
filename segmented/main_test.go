package segmented_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/redis/rueidis"
	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
)

// One server for the package; tests that break their server start their own.
var (
	server        *redistest.Server
	exampleClient rueidis.Client
)

func TestMain(m *testing.M) {
	if role, ok := roles[redistest.Role()]; ok {
		role()
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if server, err = redistest.Start(redistest.Options{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	exampleClient, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	exampleClient.Close()
	server.Stop()
	// A closed cluster client of rueidis sleeps on for seconds in these two.
	if err := goleak.Find(
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"),
	); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// exampleSession is a session as a program has one.
func exampleSession() *holdfast.Session {
	hf, err := holdfast.New(exampleClient, holdfast.SessionOptions{})
	if err != nil {
		panic(err)
	}
	return hf
}

// roles are what the test binary does when a test runs it again as another
// process.
var roles = map[string]func(){
	"killed buyer":  killedBuyer,
	"killed basket": killedBasket,
	"killed mover":  killedMover,
	"storm buyer":   stormBuyer,
}
