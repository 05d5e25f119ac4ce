// The Go client of the benchmark: publishes with confirms in a window, then consumes and acknowledges each message
// by itself. The argument is a job as JSON, the output its result as JSON, as of the programs in Python.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

type job struct {
	URL    string   `json:"url"`
	Queue  string   `json:"queue"`
	Size   int      `json:"size"`
	Number int      `json:"number"`
	Window int      `json:"window"`
	Works  []string `json:"works"`
}

type sample struct {
	Number  int     `json:"number"`
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu"`
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// cpu is what this process has spent so far, user and system.
func cpu() float64 {
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}

// largest is the memory of this process at its largest, in octets.
func largest() int64 {
	status, err := os.ReadFile("/proc/self/status")
	check(err)
	for _, line := range strings.Split(string(status), "\n") {
		var size int64
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &size); err == nil {
			return size * 1024
		}
	}
	return 0
}

func measure(number int, work func()) sample {
	began, before := time.Now(), cpu()
	work()
	return sample{number, time.Since(began).Seconds(), cpu() - before}
}

func publish(j job) sample {
	connection, err := amqp.Dial(j.URL)
	check(err)
	defer connection.Close()
	channel, err := connection.Channel()
	check(err)
	_, err = channel.QueueDeclare(j.Queue, true, false, false, false, nil)
	check(err)
	check(channel.Confirm(false))
	confirms := channel.NotifyPublish(make(chan amqp.Confirmation, j.Window))
	message := amqp.Publishing{
		ContentType:  "text/plain",
		DeliveryMode: amqp.Persistent,
		Body:         []byte(strings.Repeat("x", j.Size)),
	}
	room := make(chan struct{}, j.Window)
	done := make(chan struct{})
	return measure(j.Number, func() {
		go func() {
			for range j.Number {
				if !(<-confirms).Ack {
					check(fmt.Errorf("a publish was refused"))
				}
				<-room
			}
			close(done)
		}()
		ctx := context.Background()
		for range j.Number {
			room <- struct{}{}
			check(channel.PublishWithContext(ctx, "", j.Queue, true, false, message))
		}
		<-done
		check(channel.Close())
	})
}

func consume(j job) sample {
	connection, err := amqp.Dial(j.URL)
	check(err)
	defer connection.Close()
	channel, err := connection.Channel()
	check(err)
	check(channel.Qos(j.Window, 0, false))
	return measure(j.Number, func() {
		deliveries, err := channel.Consume(j.Queue, "bench", false, false, false, false, nil)
		check(err)
		for range j.Number {
			delivery := <-deliveries
			check(delivery.Ack(false))
		}
		check(channel.Close())
	})
}

func main() {
	var j job
	check(json.Unmarshal([]byte(os.Args[1]), &j))
	kinds := map[string]func(job) sample{"publish": publish, "consume": consume}
	works := map[string]sample{}
	for _, work := range j.Works {
		works[work] = kinds[work](j)
	}
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{"works": works, "memory": largest()}))
}
