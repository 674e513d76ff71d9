package bench

import (
	"context"
	"io"
	"net"
	"os/exec"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// etcdServer is a cluster of one etcd.
type etcdServer struct {
	addr string
	cmd  *exec.Cmd
}

func (s etcdServer) Addr() string { return s.addr }
func (s etcdServer) PID() int     { return s.cmd.Process.Pid }

func (s etcdServer) cpu() (time.Duration, error) { return cpuOf(s.PID()) }

// startEtcd starts an etcd with its default durability: it writes to the disk
// before it answers.
func startEtcd(tb testing.TB) etcdServer {
	tb.Helper()
	clients, peers := freePort(tb), freePort(tb)
	cmd := exec.Command("etcd", "--data-dir", tb.TempDir(), "--log-level", "error",
		"--listen-client-urls", "http://"+clients, "--advertise-client-urls", "http://"+clients,
		"--listen-peer-urls", "http://"+peers, "--initial-advertise-peer-urls", "http://"+peers,
		"--initial-cluster", "default=http://"+peers)
	cmd.Stdout, cmd.Stderr = io.Discard, io.Discard
	if err := cmd.Start(); err != nil {
		tb.Fatalf("start etcd: %v", err)
	}
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	s := etcdServer{addr: clients, cmd: cmd}
	if err := s.ready(); err != nil {
		tb.Fatalf("etcd does not answer: %v", err)
	}
	return s
}

func (s etcdServer) ready() error {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.addr}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for {
		if _, err = c.Get(ctx, "ready"); err == nil || ctx.Err() != nil {
			return err
		}
	}
}

func freePort(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("no free port: %v", err)
	}
	defer l.Close()
	return l.Addr().String()
}
