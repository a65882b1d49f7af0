import { mount } from "svelte";
import App from "./App.svelte";
import "./app.css";
import { language } from "./texts";

document.documentElement.lang = language;
const target = document.getElementById("app");
if (target) mount(App, { target });
