// Loaded with the first curve: the overview does not need it.
import "uplot/dist/uPlot.min.css";

export { default } from "uplot";
