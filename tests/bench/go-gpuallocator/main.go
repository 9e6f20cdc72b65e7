// Asks NVIDIA's go-gpuallocator for sets of GPUs, as the device plugin does, and times it.
//
// JSON lines in, JSON lines out, in order. A line with "links" describes a machine that the next questions are about:
// its matrices of NVLink counts and of go-gpuallocator's own numbers for PCIe paths (1 across CPUs, 2 same CPU, 3 host
// bridge, 4 several switches, 5 one switch). A question is {"free": [0, 1, 4], "gpus": 2, "repeat": 100}; its answer
// has the GPUs' numbers, -1 for padding, and the median nanoseconds of one call.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"slices"
	"time"

	"github.com/NVIDIA/go-gpuallocator/gpuallocator"
)

type question struct {
	Links  [][]uint `json:"links"`
	Paths  [][]uint `json:"paths"`
	Free   []int    `json:"free"`
	GPUs   int      `json:"gpus"`
	Repeat int      `json:"repeat"`
}

type answer struct {
	GPUs        []int `json:"gpus"`
	Nanoseconds int64 `json:"ns"`
}

// The numbers of link types start with one NVLink behind the PCIe ones.
const oneNVLink = 7

func main() {
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 1<<20)
	output := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(output)
	var machine []*gpuallocator.Device
	for input.Scan() {
		var asked question
		if err := json.Unmarshal(input.Bytes(), &asked); err != nil {
			log.Fatalf("%s: %v", input.Text(), err)
		}
		if asked.Links != nil {
			machine = build(asked.Links, asked.Paths)
			continue
		}
		if err := encoder.Encode(ask(machine, asked)); err != nil {
			log.Fatal(err)
		}
		if err := output.Flush(); err != nil {
			log.Fatal(err)
		}
	}
	if err := input.Err(); err != nil {
		log.Fatal(err)
	}
}

func build(links, paths [][]uint) []*gpuallocator.Device {
	machine := make([]*gpuallocator.Device, len(links))
	for i := range machine {
		machine[i] = &gpuallocator.Device{Index: i, Links: map[int][]gpuallocator.P2PLink{}}
		machine[i].UUID = fmt.Sprint("GPU-", i)
	}
	for i, device := range machine {
		for j, peer := range machine {
			if i == j {
				continue
			}
			device.Links[j] = append(device.Links[j], link(peer, paths[i][j]))
			if links[i][j] > 0 {
				device.Links[j] = append(device.Links[j], link(peer, oneNVLink-1+links[i][j]))
			}
		}
	}
	return machine
}

func link(peer *gpuallocator.Device, kind uint) gpuallocator.P2PLink {
	made := gpuallocator.P2PLink{GPU: peer}
	set(&made.Type, kind)
	return made
}

// set assigns to a field whose type is internal to go-gpuallocator and has no name here.
func set[T ~uint](field *T, value uint) {
	*field = T(value)
}

func ask(machine []*gpuallocator.Device, asked question) answer {
	free := make([]*gpuallocator.Device, len(asked.Free))
	for i, index := range asked.Free {
		free[i] = machine[index]
	}
	policy := gpuallocator.NewBestEffortPolicy()
	took := make([]int64, max(asked.Repeat, 1))
	var chosen []*gpuallocator.Device
	for i := range took {
		begun := time.Now()
		chosen = policy.Allocate(free, nil, asked.GPUs)
		took[i] = time.Since(begun).Nanoseconds()
	}
	slices.Sort(took)
	gpus := make([]int, len(chosen))
	for i, device := range chosen {
		gpus[i] = -1
		if device != nil {
			gpus[i] = device.Index
		}
	}
	return answer{GPUs: gpus, Nanoseconds: took[len(took)/2]}
}
