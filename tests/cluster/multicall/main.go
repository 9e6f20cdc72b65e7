// One binary for every Kubernetes part of the test cluster. The first argument
// (or the name it was started by) picks the part:
//
//	kube etcd DIR CLIENT_URL
//	kube kube-apiserver|kube-controller-manager|kube-scheduler|kube-proxy|kubelet|kubectl ARGS...
//
// The parts share most of their code, so linking it once is what makes the
// build bearable on a small machine. It is compiled against the go.mod of one
// of the kubernetes-1.* folders.
package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	part := filepath.Base(os.Args[0])
	if command(part) == nil && part != "etcd" {
		if len(os.Args) < 2 {
			fail("usage: kube PART ARGS...")
		}
		os.Args = os.Args[1:]
		part = os.Args[0]
	}
	if part == "etcd" {
		etcd(os.Args[1:])
		return
	}
	newCommand := command(part)
	if newCommand == nil {
		fail("unknown part " + part)
	}
	os.Exit(cli.Run(newCommand()))
}

// command returns the constructor of a part, nil for an unknown name.
func command(part string) func() *cobra.Command {
	switch part {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand
	case "kube-controller-manager":
		return controllermanager.NewControllerManagerCommand
	case "kube-scheduler":
		return func() *cobra.Command { return scheduler.NewSchedulerCommand() }
	case "kube-proxy":
		return proxy.NewProxyCommand
	case "kubelet":
		return func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }
	case "kubectl":
		return kubectl.NewDefaultKubectlCommand
	}
	return nil
}

// etcd serves one member that never waits for the disk; its data may be lost
// with the machine, which a test cluster can afford.
func etcd(args []string) {
	if len(args) != 2 {
		fail("usage: kube etcd DIR CLIENT_URL")
	}
	client, err := url.Parse(args[1])
	if err != nil {
		fail(err.Error())
	}
	config := embed.NewConfig()
	config.Dir = args[0]
	config.ListenClientUrls = []url.URL{*client}
	config.AdvertiseClientUrls = []url.URL{*client}
	config.UnsafeNoFsync = true
	config.LogLevel = "warn"
	// Embedded, this is zero, and every request would be logged as a slow one.
	config.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration
	config.AutoCompactionMode = "periodic"
	config.AutoCompactionRetention = "10m"
	server, err := embed.StartEtcd(config)
	if err != nil {
		fail(err.Error())
	}
	defer server.Close()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	select {
	case <-stop:
	case err := <-server.Err():
		fail(err.Error())
	}
}

func fail(message string) {
	fmt.Fprintln(os.Stderr, message)
	os.Exit(1)
}
