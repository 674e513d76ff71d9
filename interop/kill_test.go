package interop_test

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
)

const killLease = 1500 * time.Millisecond

// A killed process says nothing: who waits gets in when its lease ends.
func TestGo_getsInWhenTheLeaseOfAKilledJavaEnds(t *testing.T) {
	together(t, func(t *testing.T, j *jvm, p place) {
		victim := startJVM(t, j.jar)
		java := p.open(t, victim, "watchdog=1500").thread("1")
		hf := p.session(t)
		var waiters []<-chan grant
		for _, k := range kinds {
			name := key(t) + ":" + k.name
			java.do(t, "lock", k, name)
			waiters = append(waiters, waitFor(t, k.lock(hf, name, holdfast.Options{})))
		}
		time.Sleep(2 * killLease) // it is renewed
		for i, k := range kinds {
			waits(t, waiters[i], "Java lives, and has "+k.name)
		}
		killed := time.Now()
		victim.kill()
		for _, waiter := range waiters {
			g := granted(t, waiter)
			require.Greater(t, g.at.Sub(killed), killLease/10, "its last renewal counts")
			require.Less(t, g.at.Sub(killed), killLease+5*time.Second)
			require.NoError(t, g.lease.Unlock(g.ctx))
		}
	})
}

func TestJava_getsInWhenTheLeaseOfAKilledGoEnds(t *testing.T) {
	together(t, func(t *testing.T, j *jvm, p place) {
		var addrs []string
		for _, s := range p.servers {
			addrs = append(addrs, s.Addr())
		}
		victim := redistest.Child(t, "holder", "NAME="+key(t), "ADDRS="+strings.Join(addrs, ","), "PLACE="+p.name)
		victim.Line("held", patience)
		java := p.open(t, j)
		var calls []<-chan answer
		for _, k := range kinds {
			calls = append(calls, java.thread(k.name).start("lock", k, key(t)+":"+k.name))
		}
		time.Sleep(2 * killLease)
		for i, k := range kinds {
			blocked(t, calls[i], "Go lives, and has "+k.name)
		}
		killed := time.Now()
		victim.Kill()
		for i, k := range kinds {
			a := wait(t, calls[i])
			require.NoError(t, a.err)
			require.Greater(t, a.ended.Sub(killed), killLease/10)
			require.Less(t, a.ended.Sub(killed), killLease+5*time.Second)
			java.thread(k.name).do(t, "unlock", k, key(t)+":"+k.name)
		}
	})
}

func init() { roles["holder"] = holder } //nolint:gochecknoinits // beside what it is about

// holder is a Go process that holds a lock of each kind until it is killed.
func holder() {
	hf := holderSession()
	for _, k := range kinds {
		_, _, err := k.lock(hf, os.Getenv("NAME")+":"+k.name, holdfast.Options{Lease: killLease}).Lock(context.Background())
		check(err)
	}
	redistest.Say("held")
	<-redistest.Listen()
}

// holderSession is the session of a process that will be killed.
func holderSession() *holdfast.Session {
	redis, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: strings.Split(os.Getenv("ADDRS"), ","), DisableCache: true, ForceSingleClient: os.Getenv("PLACE") == "single",
	})
	check(err)
	hf, err := holdfast.New(redis, holdfast.SessionOptions{Logger: slog.New(slog.DiscardHandler)})
	check(err)
	return hf
}
