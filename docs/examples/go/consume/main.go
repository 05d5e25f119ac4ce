// Pull messages, print them, and acknowledge them: go run ./consume SUBSCRIPTION
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"os"
)

func ask(subscription, verb string, body, found any) {
	gateway := os.Getenv("GATEWAY_URL")
	if gateway == "" {
		gateway = "http://127.0.0.1:8080"
	}
	text, _ := json.Marshal(body)
	where := fmt.Sprintf("%s/v1/subscriptions/%s:%s", gateway, url.PathEscape(subscription), verb)
	request, err := http.NewRequest("POST", where, bytes.NewReader(text))
	if err != nil {
		log.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if apiKey := os.Getenv("GATEWAY_API_KEY"); apiKey != "" {
		request.Header.Set("Authorization", "Bearer "+apiKey)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != 200 {
		log.Fatal(answer.Status)
	}
	if err := json.NewDecoder(answer.Body).Decode(found); err != nil {
		log.Fatal(err)
	}
}

func main() {
	log.SetFlags(0)
	var pulled struct {
		Messages []struct {
			AckID   string `json:"ack_id"`
			Message struct{ Payload any }
		}
	}
	ask(os.Args[1], "pull", map[string]int{"max_messages": 10, "wait_seconds": 20}, &pulled)
	ids := []string{}
	for _, each := range pulled.Messages {
		fmt.Println(each.Message.Payload)
		ids = append(ids, each.AckID)
	}
	if len(ids) > 0 {
		var settled struct{ Results []struct{ Status string } }
		ask(os.Args[1], "acknowledge", map[string][]string{"ack_ids": ids}, &settled)
		for _, result := range settled.Results {
			fmt.Println(result.Status)
		}
	}
}
