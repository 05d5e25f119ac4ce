// Publish one message, once: go run ./publish BROKER EXCHANGE ROUTING_KEY PAYLOAD KEY
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

func main() {
	log.SetFlags(0)
	broker, exchange, routingKey, payload, key := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	gateway := os.Getenv("GATEWAY_URL")
	if gateway == "" {
		gateway = "http://127.0.0.1:8080"
	}
	body, _ := json.Marshal(map[string]string{"routing_key": routingKey, "payload": payload})
	where := fmt.Sprintf("%s/v1/brokers/%s/exchanges/%s:publish", gateway, broker, url.PathEscape(exchange))
	request, err := http.NewRequest("POST", where, bytes.NewReader(body))
	if err != nil {
		log.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", key) // after any failure send the same again: nothing is published twice
	if apiKey := os.Getenv("GATEWAY_API_KEY"); apiKey != "" {
		request.Header.Set("Authorization", "Bearer "+apiKey)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	var outcome struct {
		Status       any
		Code, Detail string
	}
	if err := json.NewDecoder(answer.Body).Decode(&outcome); err != nil {
		log.Fatal(err)
	}
	if answer.StatusCode != 200 {
		log.Fatal(outcome.Code, ": ", outcome.Detail)
	}
	fmt.Println(outcome.Status)
}
